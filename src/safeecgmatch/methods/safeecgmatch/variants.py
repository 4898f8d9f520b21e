"""The variants of SafeECGMatch; docs/methods.md derives each.

The second branch is called `freq` whatever it sees, in losses, predictions and temperatures: in `two_time` it is a
second time branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safeecgmatch.engine.views import spectrum
from safeecgmatch.methods.calimatch.step import CaliMatchSwitches
from safeecgmatch.methods.safeecgmatch.views import Transform, log_spectrum


class SafeECGMatchSwitches(CaliMatchSwitches):
    smoothing_tables: Literal["own", "shared"]
    prediction: Literal["time", "freq", "mean_prob"]


@dataclass(frozen=True)
class Variant:
    """The method as the paper has it, unless a field says otherwise."""

    calibrated: tuple[str, ...] = ("time", "freq")  # branches with calibration losses and temperatures
    learned: bool = False  # temperatures by gradient, tables as CaliMatch's
    transform: Transform | None = spectrum  # of the second branch's input; None: the signal, in views of its own
    coupled: bool = False  # both branches learn from what they think together

    def applied(self, switches: SafeECGMatchSwitches) -> SafeECGMatchSwitches:
        """The switches that it runs with: temperatures that already are learned stay as they are."""
        if not self.learned:
            return switches
        learned = "gradient_clamped" if switches.temperatures == "validation" else switches.temperatures
        return switches.model_copy(update={"temperatures": learned, "smoothing_axis": "mixed"})


VARIANTS = {
    "full": Variant(),
    # The paper's ablation.
    "no_freq_cal": Variant(calibrated=("time",)),
    "no_cal": Variant(calibrated=()),
    # The other reading of its temperatures, and what the ablations are under it (`no_cal` has no temperatures).
    "learned_t": Variant(learned=True),
    "learned_no_freq_cal": Variant(calibrated=("time",), learned=True),
    "learned_two_time": Variant(transform=None, learned=True),
    # What the paper did not ask.
    "two_time": Variant(transform=None),
    "coupled": Variant(coupled=True),
    "log_spectrum": Variant(transform=log_spectrum),
}
