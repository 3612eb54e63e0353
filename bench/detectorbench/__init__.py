"""Parts of the detector's calibration."""
