"""What one composition answers: averages, groups and calibration with intervals, judged on random laws."""
