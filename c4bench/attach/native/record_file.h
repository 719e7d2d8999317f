/* A file of records in the folder that the agent has made for them, under the process's number, in shared memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

struct record_file {
	unsigned char *memory;
	size_t bytes;
	char path[512];
};

/* Makes PID and `suffix`, of these bytes, of which the first are reserved, under a name that nobody looks for. Returns NULL,
   or why there is no file; then nothing is left behind. */
const char *record_file_create(struct record_file *file, const char *suffix, size_t bytes, size_t reserved);

/* Gives it its header and then its name: nobody reads half a header. Returns as `record_file_create` does. */
const char *record_file_publish(struct record_file *file, const void *header, size_t length);

/* Reserves memory that is about to be written for the first time: a store into a file for which there is none would end the
   program. */
bool record_file_reserve(const struct record_file *file, size_t at, size_t length);

/* Puts memory of a child's own in the place of its parent's file. */
void record_file_leave(const struct record_file *file);

void record_file_remove(struct record_file *file);

/* The folder of records. */
const char *record_folder(void);

#pragma GCC visibility pop
