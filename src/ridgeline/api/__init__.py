"""The questions people ask: functions of words that return an `Answer`, for every way in."""
