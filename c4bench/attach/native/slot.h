/* A record of a telemetry file, which readers may read while it is written: collective/ring_layout.py has the layout. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct slot {
	unsigned char *copies; /* two of `size` bytes each */
	size_t size;
	uint64_t generation;
};

/* A record at an address of the file; an old value there does not look newer than the next one. */
struct slot slot_at(unsigned char *copies, size_t size);

/* Replace the record; the other copy keeps the previous value. What does not fit is left out. */
void slot_write(struct slot *slot, const void *payload, size_t length);

#pragma GCC visibility pop
