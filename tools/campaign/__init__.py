"""Campaigns of faults: what counts as a right answer, judged from the fabric, the job's steps and the findings."""
