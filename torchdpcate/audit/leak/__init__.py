"""Does a run's release hold anything of its curator's?"""

from torchdpcate.audit.leak.scan import FALSE_ALARM, LeakReport, leak_report, scan

__all__ = ["FALSE_ALARM", "LeakReport", "leak_report", "scan"]
