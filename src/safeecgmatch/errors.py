"""The one exception whose cause a user can fix."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right; the message is one sentence that says what, where and what to do.

    Stages and the command line print it without a traceback and exit with status 1.
    """
