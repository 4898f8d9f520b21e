"""The published benchmark's versions of methods that are other algorithms than the papers they are named after."""
