#define _GNU_SOURCE
#include "record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char UNFINISHED[] = ".new";

const char *record_folder(void)
{
	const char *given = getenv("C4BENCH_ATTACH_RECORDS");

	return given && *given ? given : "/dev/shm/c4bench-attach";
}

static void name_unfinished(const struct record_file *file, char name[sizeof file->path + sizeof UNFINISHED])
{
	strcpy(name, file->path);
	strcat(name, UNFINISHED);
}

/* Why a file of this size could not be written. */
static const char *limited(size_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
		return "files may not be that large (ulimit -f)";
	return NULL;
}

static const char *map(struct record_file *file, const char *path, size_t reserved)
{
	int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	const char *why = NULL;
	void *memory = MAP_FAILED;

	if (descriptor < 0)
		return strerror(errno);
	if (ftruncate(descriptor, (off_t)file->bytes) < 0 || posix_fallocate(descriptor, 0, (off_t)reserved))
		why = "there is no memory for it";
	else if ((memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)) == MAP_FAILED)
		why = strerror(errno);
	close(descriptor);
	if (why)
		unlink(path);
	else
		file->memory = memory;
	return why;
}

const char *record_file_create(struct record_file *file, const char *suffix, size_t bytes, size_t reserved)
{
	char unfinished[sizeof file->path + sizeof UNFINISHED];
	int length = snprintf(file->path, sizeof file->path, "%s/%d%s", record_folder(), getpid(), suffix);

	file->memory = NULL;
	file->bytes = bytes;
	if (length >= (int)sizeof file->path)
		return "its name is too long";
	name_unfinished(file, unfinished);
	unlink(unfinished);
	const char *why = limited(bytes);
	return why ? why : map(file, unfinished, reserved);
}

static void unmap(struct record_file *file)
{
	munmap(file->memory, file->bytes);
	file->memory = NULL;
}

const char *record_file_publish(struct record_file *file, const void *header, size_t length)
{
	char unfinished[sizeof file->path + sizeof UNFINISHED];

	name_unfinished(file, unfinished);
	memcpy(file->memory, header, length);
	/* Not over another's: a process in a container may have the same number. */
	if (!renameat2(AT_FDCWD, unfinished, AT_FDCWD, file->path, RENAME_NOREPLACE))
		return NULL;
	const char *why = strerror(errno);
	unlink(unfinished);
	unmap(file);
	return why;
}

/* Opens the file each time: programs close descriptors that they do not know. */
bool record_file_reserve(const struct record_file *file, size_t at, size_t length)
{
	int descriptor = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	bool reserved = descriptor >= 0 && !posix_fallocate(descriptor, (off_t)at, (off_t)length);

	if (descriptor >= 0)
		close(descriptor);
	return reserved;
}

void record_file_leave(const struct record_file *file)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;

	if (file->memory)
		mmap(file->memory, file->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

void record_file_remove(struct record_file *file)
{
	unlink(file->path);
	unmap(file);
}
