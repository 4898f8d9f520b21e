"""An independent reproduction of SafeECGMatch: open-set semi-supervised ECG classification, calibrated."""
