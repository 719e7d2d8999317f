"""Collectives over reliable connections, and the record of what each rank did."""
