"""A finished cell as a classifier of other people's ECGs: calibrated probabilities, and a refusal."""
