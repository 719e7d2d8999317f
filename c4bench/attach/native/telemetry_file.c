/* Writes a rank's telemetry file with plain stores. Memory is reserved before it is first written: a store into a file
   for which there is no memory would kill the program. */
#define _GNU_SOURCE
#include "telemetry_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEADER_BYTES 4096
#define PROCESS_BYTES 512
#define COMM_BYTES (128 << 10)
#define OPS_PER_COMM 64
#define OP_BYTES 256
#define CONN_NAME_BYTES 256
#define CONN_BYTES 192
#define ARRIVAL_BYTES 96

/* Every record has two copies, one behind the other. */
#define COMMS_AT (HEADER_BYTES + 2 * PROCESS_BYTES)
#define OPS_AT (COMMS_AT + 2 * COMM_BYTES * TELEMETRY_COMMS)
#define CONN_NAMES_AT (OPS_AT + 2 * OP_BYTES * OPS_PER_COMM * TELEMETRY_COMMS)
#define CONNS_AT (CONN_NAMES_AT + 2 * CONN_NAME_BYTES * TELEMETRY_CONNS)
#define ARRIVAL_NAMES_AT (CONNS_AT + 2 * CONN_BYTES * TELEMETRY_CONNS)
#define ARRIVALS_AT (ARRIVAL_NAMES_AT + 2 * CONN_NAME_BYTES * TELEMETRY_CONNS)
#define FILE_BYTES (ARRIVALS_AT + 2 * ARRIVAL_BYTES * TELEMETRY_CONNS)

struct header {
	char magic[8];
	uint32_t sizes[9];
};

struct copy {
	uint64_t generation;
	uint32_t length, checksum;
};

static const struct header HEADER = {"C4RING07",
				     {PROCESS_BYTES, TELEMETRY_COMMS, COMM_BYTES, OPS_PER_COMM, OP_BYTES,
				      TELEMETRY_CONNS, CONN_NAME_BYTES, CONN_BYTES, ARRIVAL_BYTES}};

static uint32_t crc_table[8][256];

/* The CRC of Ethernet and zlib, eight bytes at a time (Kounavis and Berry, "Novel table lookup-based algorithms for
   high-performance CRC generation", 2008). */
static void make_crc_table(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
		crc_table[0][byte] = crc;
	}
	for (int table = 1; table < 8; table++)
		for (int byte = 0; byte < 256; byte++) {
			uint32_t crc = crc_table[table - 1][byte];
			crc_table[table][byte] = crc >> 8 ^ crc_table[0][crc & 0xFF];
		}
}

static uint32_t crc32_from(uint32_t start, const unsigned char *bytes, size_t length)
{
	uint32_t crc = ~start;

	for (; length >= 8; length -= 8, bytes += 8) {
		uint32_t low, high;
		memcpy(&low, bytes, 4);
		memcpy(&high, bytes + 4, 4);
		low ^= crc;
		crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
		      crc_table[4][low >> 24] ^ crc_table[3][high & 0xFF] ^ crc_table[2][high >> 8 & 0xFF] ^
		      crc_table[1][high >> 16 & 0xFF] ^ crc_table[0][high >> 24];
	}
	while (length--)
		crc = crc >> 8 ^ crc_table[0][(crc ^ *bytes++) & 0xFF];
	return ~crc;
}

static uint64_t generation_at(const unsigned char *copy)
{
	uint64_t generation;

	memcpy(&generation, copy, sizeof(generation));
	return generation;
}

/* Replaces the record of `size` bytes a copy at `at`; its other copy keeps the value before. */
static void write_record(struct telemetry_file *file, size_t at, size_t size, const void *payload, size_t length)
{
	unsigned char *first = file->memory + at, *second = first + size;
	uint64_t generation = generation_at(first) > generation_at(second) ? generation_at(first) : generation_at(second);
	unsigned char *to = ++generation & 1 ? second : first;
	struct copy copy = {generation, (uint32_t)length, crc32_from((uint32_t)generation, payload, length)};

	memcpy(to + sizeof(copy), payload, length);
	atomic_thread_fence(memory_order_release);
	memcpy(to, &copy, sizeof(copy));
}

static bool reserve(struct telemetry_file *file, size_t at, size_t length)
{
	return !posix_fallocate(file->descriptor, (off_t)at, (off_t)length);
}

/* MessagePack, as much as names need. What does not fit is cut off, and `used` shows it. */
struct packed {
	unsigned char bytes[1024];
	size_t used;
};

static void put(struct packed *packed, const void *bytes, size_t length)
{
	if (packed->used + length <= sizeof(packed->bytes))
		memcpy(packed->bytes + packed->used, bytes, length);
	packed->used += length;
}

static void put_byte(struct packed *packed, unsigned int byte)
{
	unsigned char one = (unsigned char)byte;

	put(packed, &one, 1);
}

static void put_map(struct packed *packed, unsigned int entries)
{
	put_byte(packed, 0x80 | entries);
}

static void put_array(struct packed *packed, unsigned int entries)
{
	put_byte(packed, 0x90 | entries);
}

static void put_text(struct packed *packed, const char *text)
{
	size_t length = strnlen(text, 255);

	put_byte(packed, 0xd9);
	put_byte(packed, (unsigned int)length);
	put(packed, text, length);
}

static void put_number(struct packed *packed, const char *name, int64_t number)
{
	put_text(packed, name);
	put_byte(packed, 0xd3);
	for (int shift = 56; shift >= 0; shift -= 8)
		put_byte(packed, (unsigned int)(number >> shift) & 0xFF);
}

static void put_named(struct packed *packed, const char *name, const char *text)
{
	put_text(packed, name);
	put_text(packed, text);
}

static bool fits(const struct packed *packed)
{
	return packed->used <= sizeof(packed->bytes);
}

int64_t telemetry_now_ns(void)
{
	static atomic_llong epoch_ns;
	struct timespec wall, steady;

	clock_gettime(CLOCK_MONOTONIC, &steady);
	int64_t now_ns = (int64_t)steady.tv_sec * 1000000000 + steady.tv_nsec;
	long long from_ns = atomic_load_explicit(&epoch_ns, memory_order_relaxed);
	if (!from_ns) {
		clock_gettime(CLOCK_REALTIME, &wall);
		long long found_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - now_ns;
		from_ns = atomic_compare_exchange_strong(&epoch_ns, &from_ns, found_ns) ? found_ns : from_ns;
	}
	return from_ns + now_ns;
}

/* Why a file of this size could not be written. */
static const char *limited(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < FILE_BYTES)
		return "files may not be that large (ulimit -f)";
	return NULL;
}

static bool make_folder(const char *path)
{
	return mkdir(path, 0777) == 0 || errno == EEXIST;
}

static const char *open_memory(struct telemetry_file *file, const char *path)
{
	file->descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (file->descriptor < 0)
		return strerror(errno);
	if (ftruncate(file->descriptor, FILE_BYTES) < 0 || !reserve(file, 0, COMMS_AT))
		return "there is no memory for it";
	file->memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, 0);
	return file->memory == MAP_FAILED ? strerror(errno) : NULL;
}

/* The file gets its name only when it is complete, so that nobody reads half a header. */
static const char *fill(struct telemetry_file *file, const char *unfinished)
{
	struct packed owner = {.used = 0};

	put_map(&owner, 3);
	put_named(&owner, "job", file->owner.job);
	put_number(&owner, "rank", file->owner.seat);
	put_number(&owner, "pid", getpid());
	write_record(file, HEADER_BYTES, PROCESS_BYTES, owner.bytes, owner.used);
	memcpy(file->memory, &HEADER, sizeof(HEADER));
	return rename(unfinished, file->path) < 0 ? strerror(errno) : NULL;
}

const char *telemetry_create(struct telemetry_file *file, const char *folder, const char *name,
			     const struct telemetry_owner *owner)
{
	char unfinished[sizeof(file->path) + 8], *own = file->path;
	const char *why = limited();

	memset(file, 0, sizeof(*file));
	file->owner = *owner;
	pthread_mutex_init(&file->lock, NULL);
	make_crc_table();
	int length = snprintf(own, sizeof(file->path), "%s/%s", folder, owner->job);
	if (length < 0 || (size_t)length + strlen(name) + 2 > sizeof(file->path))
		return "its name is too long";
	if (!why && (!make_folder(folder) || !make_folder(own)))
		why = strerror(errno);
	snprintf(own + length, sizeof(file->path) - (size_t)length, "/%s", name);
	if (why)
		return why;
	snprintf(unfinished, sizeof(unfinished), "%s.new", own);
	if (!(why = open_memory(file, unfinished)))
		why = fill(file, unfinished);
	if (why) {
		unlink(unfinished);
		if (file->descriptor >= 0)
			close(file->descriptor);
		if (file->memory && file->memory != MAP_FAILED)
			munmap(file->memory, FILE_BYTES);
	}
	return why;
}

void telemetry_remove(struct telemetry_file *file)
{
	unlink(file->path);
	munmap(file->memory, FILE_BYTES);
	close(file->descriptor);
}

static int take(struct telemetry_file *file, uint8_t *table, int places, int taker)
{
	int place = 0;

	pthread_mutex_lock(&file->lock);
	while (place < places && table[place])
		place++;
	if (place < places)
		table[place] = (uint8_t)(taker + 1);
	pthread_mutex_unlock(&file->lock);
	return place < places ? place : -1;
}

static size_t comm_at(int comm)
{
	return COMMS_AT + (size_t)comm * 2 * COMM_BYTES;
}

static size_t op_at(int comm, uint64_t seq)
{
	return OPS_AT + ((size_t)comm * OPS_PER_COMM + seq % OPS_PER_COMM) * 2 * OP_BYTES;
}

static size_t place_at(size_t table, int place, size_t size)
{
	return table + (size_t)place * 2 * size;
}

static void put_member(struct packed *packed, int rank, const char *host, int seat)
{
	put_map(packed, 4);
	put_number(packed, "rank", rank);
	put_named(packed, "host", host);
	put_text(packed, "nics");
	put_array(packed, 0);
	put_number(packed, "seat", seat);
}

/* The rank itself, and the last rank, without a host where that is another: so readers know how many there are. */
static void put_comm(struct packed *packed, const struct telemetry_owner *owner, const struct telemetry_comm *comm)
{
	bool last = comm->rank == comm->ranks - 1;

	put_map(packed, 2);
	put_number(packed, "rank", comm->rank);
	put_text(packed, "record");
	put_map(packed, 3);
	put_named(packed, "comm", comm->name);
	put_named(packed, "job", owner->job);
	put_text(packed, "members");
	put_array(packed, last ? 1 : 2);
	put_member(packed, comm->rank, owner->host, owner->seat);
	if (!last)
		put_member(packed, comm->ranks - 1, "", -1);
}

int telemetry_open_comm(struct telemetry_file *file, const struct telemetry_comm *comm)
{
	struct packed entry = {.used = 0};
	int place = take(file, file->comms, TELEMETRY_COMMS, 0);

	if (place < 0)
		return -1;
	size_t at = comm_at(place), used = sizeof(struct copy) + sizeof(entry.bytes);
	put_comm(&entry, &file->owner, comm);
	if (!fits(&entry) || !reserve(file, at, used) || !reserve(file, at + COMM_BYTES, used) ||
	    !reserve(file, op_at(place, 0), (size_t)2 * OP_BYTES * OPS_PER_COMM)) {
		file->comms[place] = 0;
		return -1;
	}
	write_record(file, at, COMM_BYTES, entry.bytes, entry.used);
	return place;
}

/* An end of a connection. Its NICs are not known here; its numbers stand before its name. */
static int open_end(struct telemetry_file *file, uint8_t *table, const size_t at[2], size_t size, int comm, int peer,
		    int qp, const void *numbers, size_t length)
{
	struct packed name = {.used = 0};
	int place = take(file, table, TELEMETRY_CONNS, comm);

	if (place < 0)
		return -1;
	size_t name_at = place_at(at[0], place, CONN_NAME_BYTES), numbers_at = place_at(at[1], place, size);
	if (!reserve(file, name_at, (size_t)2 * CONN_NAME_BYTES) || !reserve(file, numbers_at, 2 * size)) {
		table[place] = 0;
		return -1;
	}
	put_map(&name, 5);
	put_number(&name, "comm", comm);
	put_number(&name, "peer", peer);
	put_named(&name, "source", "");
	put_named(&name, "destination", "");
	put_number(&name, "qp", qp);
	write_record(file, numbers_at, size, numbers, length);
	write_record(file, name_at, CONN_NAME_BYTES, name.bytes, name.used);
	return place;
}

int telemetry_open_send(struct telemetry_file *file, int comm, int peer, int qp, const struct telemetry_conn *conn)
{
	const size_t at[2] = {CONN_NAMES_AT, CONNS_AT};

	return open_end(file, file->sends, at, CONN_BYTES, comm, peer, qp, conn, sizeof(*conn));
}

int telemetry_open_receive(struct telemetry_file *file, int comm, int peer, int qp)
{
	const size_t at[2] = {ARRIVAL_NAMES_AT, ARRIVALS_AT};
	const struct telemetry_tally none = {0};

	return open_end(file, file->receives, at, ARRIVAL_BYTES, comm, peer, qp, &none, sizeof(none));
}

static void release_ends(struct telemetry_file *file, uint8_t *table, size_t names_at, int comm)
{
	for (int place = 0; place < TELEMETRY_CONNS; place++)
		if (table[place] == comm + 1) {
			write_record(file, place_at(names_at, place, CONN_NAME_BYTES), CONN_NAME_BYTES, "", 0);
			table[place] = 0;
		}
}

void telemetry_close_comm(struct telemetry_file *file, int comm)
{
	write_record(file, comm_at(comm), COMM_BYTES, "", 0);
	for (uint64_t place = 0; place < OPS_PER_COMM; place++)
		write_record(file, op_at(comm, place), OP_BYTES, "", 0);
	pthread_mutex_lock(&file->lock);
	release_ends(file, file->sends, CONN_NAMES_AT, comm);
	release_ends(file, file->receives, ARRIVAL_NAMES_AT, comm);
	file->comms[comm] = 0;
	pthread_mutex_unlock(&file->lock);
}

void telemetry_count(struct telemetry_tally *tally, int64_t now_ns)
{
	uint64_t stride = 1;

	tally->count++;
	tally->sums[0] += (uint64_t)now_ns;
	for (int level = 1; level < TELEMETRY_STRIDES && tally->count % (stride *= 4) == 0; level++)
		tally->sums[level] = tally->sums[0];
}

void telemetry_write_op(struct telemetry_file *file, int comm, const struct telemetry_op *op)
{
	size_t length = sizeof(*op);

	while (length > offsetof(struct telemetry_op, awaits) && !((const unsigned char *)op)[length - 1])
		length--;
	write_record(file, op_at(comm, op->seq), OP_BYTES, op, length);
}

void telemetry_write_send(struct telemetry_file *file, int place, const struct telemetry_conn *conn)
{
	write_record(file, place_at(CONNS_AT, place, CONN_BYTES), CONN_BYTES, conn, sizeof(*conn));
}

void telemetry_write_receive(struct telemetry_file *file, int place, const struct telemetry_tally *arrived)
{
	write_record(file, place_at(ARRIVALS_AT, place, ARRIVAL_BYTES), ARRIVAL_BYTES, arrived, sizeof(*arrived));
}
