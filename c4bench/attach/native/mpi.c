/* Preloaded into an MPI program: its blocking collectives, in the telemetry file that c4bench's own ranks write
   (telemetry_file.h). One library for all MPIs: handles are ints in MPICH and those that follow its binary interface,
   and pointers in Open MPI, and are passed on as they come.

   All ranks of a communicator know it by the same name without a message: by the ranks of MPI_COMM_WORLD that it has,
   and by how many of the same ranks were made before it, which all of them make in the same order. */
#define _GNU_SOURCE
#include "say.h"
#include "telemetry_file.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef uintptr_t handle;

enum { COMMS = 256, TYPE_NAME_BYTES = 256, LIBRARIES = 8, NO_ROOT = -1 };

/* MPICH's binary interface, which MVAPICH, Intel MPI and others share. */
static const uint32_t MPICH_WORLD = 0x44000000, MPICH_NULL = 0x04000000;

struct comm {
	bool used;
	handle handle;
	int place; /* in the file, -1 where it is not recorded */
	int rank, ranks;
	uint64_t calls;
	struct telemetry_op op;
};

static struct {
	pthread_mutex_t lock;
	bool tried, recorded;
	struct telemetry_file file;
	struct comm comms[COMMS];
	struct {
		uint64_t ranks_hash;
		int times;
	} made[COMMS]; /* communicators of the same ranks */
	int made_count;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* An MPI library may call its own collectives to carry one out. */
static _Thread_local bool inside;

/* The MPI library */

struct names {
	char paths[LIBRARIES][256];
	int count;
};

static int note_mpi(struct dl_phdr_info *loaded, size_t size, void *found)
{
	struct names *names = found;
	const char *base = strrchr(loaded->dlpi_name, '/');

	(void)size;
	if (base && !strncmp(base, "/libmpi", 7) && names->count < LIBRARIES)
		snprintf(names->paths[names->count++], sizeof(names->paths[0]), "%s", loaded->dlpi_name);
	return 0;
}

/* A function of whoever comes after this library. Where a program has loaded MPI for itself alone, such as an extension
   of Python, it is not among those, and is looked for. */
static void *next(const char *name)
{
	struct names names = {.count = 0};
	void *found = dlsym(RTLD_NEXT, name);

	if (found)
		return found;
	dl_iterate_phdr(note_mpi, &names);
	for (int at = 0; at < names.count && !found; at++) {
		void *library = dlopen(names.paths[at], RTLD_LAZY | RTLD_NOLOAD);
		found = library ? dlsym(library, name) : NULL;
		if (library)
			dlclose(library); /* the program holds it */
	}
	return found;
}

/* An object of Open MPI. The program may have a copy of its own, which is the one that counts then. */
static handle object(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	return (handle)(found ? found : next(name));
}

/* What is asked of MPI, by the names that are for tools. */
static struct {
	bool known, open_mpi;
	handle world, none;
	int (*comm_rank)(handle, int *);
	int (*comm_size)(handle, int *);
	int (*comm_test_inter)(handle, int *);
	int (*comm_group)(handle, handle *);
	int (*group_translate_ranks)(handle, int, const int *, handle, int *);
	int (*group_free)(handle *);
	int (*type_size)(handle, int *);
	int (*type_get_name)(handle, char *, int *);
} mpi;

#define ASK(member, name) ((mpi.member = (__typeof__(mpi.member))next("PMPI_" name)) != NULL)

static void know_mpi(void)
{
	mpi.known = ASK(comm_rank, "Comm_rank") && ASK(comm_size, "Comm_size") &&
		    ASK(comm_test_inter, "Comm_test_inter") && ASK(comm_group, "Comm_group") &&
		    ASK(group_translate_ranks, "Group_translate_ranks") && ASK(group_free, "Group_free") &&
		    ASK(type_size, "Type_size") && ASK(type_get_name, "Type_get_name");
	mpi.world = object("ompi_mpi_comm_world");
	mpi.open_mpi = mpi.world != 0;
	mpi.none = mpi.open_mpi ? object("ompi_mpi_comm_null") : MPICH_NULL;
	if (!mpi.open_mpi)
		mpi.world = MPICH_WORLD;
}

/* A handle that MPI has written, or that came in a register whose upper half may hold anything. */
static handle read_handle(const void *at)
{
	handle value = 0;

	memcpy(&value, at, mpi.open_mpi ? sizeof(value) : sizeof(uint32_t));
	return value;
}

/* Communicators */

static uint64_t hashed(const int *ranks, int count)
{
	uint64_t hash = 14695981039346656037u; /* FNV-1a */

	for (int at = 0; at < count; at++)
		for (int shift = 0; shift < 32; shift += 8)
			hash = (hash ^ ((uint32_t)ranks[at] >> shift & 255)) * 1099511628211u;
	return hash;
}

/* Which ranks of MPI_COMM_WORLD the members are. */
static bool translate(handle comm, int *members, int count)
{
	handle own = 0, all = 0;
	int *places = calloc((size_t)count, sizeof(*places));

	if (!places)
		return false;
	for (int at = 0; at < count; at++)
		places[at] = at;
	bool done = !mpi.comm_group(comm, &own) && !mpi.comm_group(mpi.world, &all) &&
		    !mpi.group_translate_ranks(own, count, places, all, members);
	if (own)
		mpi.group_free(&own);
	if (all)
		mpi.group_free(&all);
	free(places);
	return done;
}

static bool hash_members(handle comm, int count, uint64_t *hash)
{
	int *members = calloc((size_t)count, sizeof(*members));
	bool done = members && translate(comm, members, count);

	*hash = done ? hashed(members, count) : 0;
	free(members);
	return done;
}

/* How many communicators of these ranks there were; -1 where there is no room to count them. */
static int count_made(uint64_t hash)
{
	int at = 0;

	while (at < process.made_count && process.made[at].ranks_hash != hash)
		at++;
	if (at == COMMS)
		return -1;
	if (at == process.made_count)
		process.made[process.made_count++].ranks_hash = hash;
	return process.made[at].times++;
}

static bool name_comm(char *to, size_t room, handle comm, int ranks)
{
	uint64_t hash;
	int before = hash_members(comm, ranks, &hash) ? count_made(hash) : -1;

	if (comm == mpi.world)
		snprintf(to, room, "mpi-world");
	else
		snprintf(to, room, "mpi-%016llx-%d", (unsigned long long)hash, before);
	return before >= 0;
}

static struct comm *find(handle comm)
{
	for (int at = 0; at < COMMS; at++)
		if (process.comms[at].used && process.comms[at].handle == comm)
			return &process.comms[at];
	return NULL;
}

static struct comm *free_entry(void)
{
	for (int at = 0; at < COMMS; at++)
		if (!process.comms[at].used)
			return &process.comms[at];
	return NULL;
}

/* Begins to record a communicator. One between groups, or of one rank, is none of which a rank waits for another. */
static struct comm *add(handle handle_of)
{
	int between = 0;
	char name[128];
	struct comm *comm = free_entry(), new = {.used = true, .handle = handle_of};

	if (mpi.comm_test_inter(handle_of, &between) || between || mpi.comm_size(handle_of, &new.ranks) ||
	    new.ranks < 2 || mpi.comm_rank(handle_of, &new.rank))
		return NULL;
	if (!name_comm(name, sizeof(name), handle_of, new.ranks) || !comm) {
		say("some communicators are not recorded: there are over %d", COMMS);
		return NULL;
	}
	const struct telemetry_comm record = {name, new.rank, new.ranks};
	new.place = telemetry_open_comm(&process.file, &record);
	if (new.place < 0)
		say("some communicators are not recorded: there are over %d, or there is no memory", TELEMETRY_COMMS);
	*comm = new;
	return comm;
}

/* What a child of a fork does is not MPI's. */
static void in_child(void)
{
	process.recorded = false;
	pthread_mutex_init(&process.lock, NULL);
}

/* Makes the file, once MPI says which rank this is. */
static void create_file(void)
{
	int rank;

	know_mpi();
	if (!mpi.known || mpi.comm_rank(mpi.world, &rank)) {
		say("MPI is not recorded: this MPI has no interface for tools (PMPI)");
		return;
	}
	const char *why = telemetry_create(&process.file, ".mpi.ring", rank);
	if (why) {
		say("MPI is not recorded: %s (is an agent set up here?): %s", why, process.file.file.path);
		return;
	}
	process.recorded = true;
	pthread_atfork(NULL, NULL, in_child);
	add(mpi.world); /* first, on all ranks: others may have the same ranks */
}

static bool ready(void)
{
	if (!process.tried)
		create_file();
	process.tried = true;
	return process.recorded;
}

static void note_made(const void *made)
{
	pthread_mutex_lock(&process.lock);
	if (ready() && read_handle(made) != mpi.none)
		add(read_handle(made));
	pthread_mutex_unlock(&process.lock);
}

static void note_freed(const void *freed)
{
	pthread_mutex_lock(&process.lock);
	struct comm *comm = process.recorded ? find(read_handle(freed)) : NULL;
	if (comm && comm->place >= 0)
		telemetry_close_comm(&process.file, comm->place);
	if (comm)
		comm->used = false;
	pthread_mutex_unlock(&process.lock);
}

static struct comm *recorded(handle comm)
{
	struct comm *found = ready() ? find(read_handle(&comm)) : NULL;

	return found && found->place >= 0 ? found : NULL;
}

/* Calls */

/* What is called. Types are compared only where data is reduced: elsewhere one rank may send bytes as what another
   receives as numbers. A count of -1 stands for parts of different lengths. */
struct what {
	const char *kind;
	int root, count;
	handle type;
	bool reduces;
};

static void name_type(char *name, handle type)
{
	char text[TYPE_NAME_BYTES] = "";
	int length = 0;

	if (mpi.type_get_name(type, text, &length))
		return;
	const char *from = strncmp(text, "MPI_", 4) ? text : text + 4;
	for (int at = 0; at < TELEMETRY_NAME_BYTES && from[at]; at++)
		name[at] = (char)tolower((unsigned char)from[at]);
}

static void describe(struct telemetry_op *op, const struct what *what)
{
	char kind[2 * TELEMETRY_NAME_BYTES] = "";
	int bytes = 0;

	snprintf(kind, sizeof(kind), what->root < 0 ? "%s" : "%s@%d", what->kind, what->root);
	memcpy(op->kind, kind, TELEMETRY_NAME_BYTES);
	if (what->count > 0 && !mpi.type_size(what->type, &bytes) && bytes > 0)
		op->size_bytes = (uint64_t)what->count * (uint64_t)bytes;
	if (what->reduces)
		name_type(op->dtype, what->type);
}

/* The call as it is recorded, NULL where it is not. */
static struct comm *begin(handle of, struct what what)
{
	if (inside)
		return NULL;
	pthread_mutex_lock(&process.lock);
	struct comm *comm = recorded(of);
	if (comm) {
		comm->op = (struct telemetry_op){.seq = comm->calls++, .entered_ns = telemetry_now_ns()};
		describe(&comm->op, &what);
		telemetry_write_op(&process.file, comm->place, &comm->op);
	}
	pthread_mutex_unlock(&process.lock);
	if (comm && c4bench_attach_process)
		c4bench_attach_process((uint64_t)comm->op.entered_ns);
	inside = comm != NULL;
	return comm;
}

static void end(struct comm *comm)
{
	if (!comm)
		return;
	inside = false;
	comm->op.finished_ns = telemetry_now_ns();
	telemetry_write_op(&process.file, comm->place, &comm->op);
}

#define COLLECTIVE(name, parameters, arguments, comm, ...)                                     \
	EXPORTED int MPI_##name parameters                                                     \
	{                                                                                      \
		static int (*function) parameters;                                             \
		if (!function)                                                                 \
			function = (int (*) parameters)next("MPI_" #name);                     \
		struct comm *call = begin(comm, (struct what){__VA_ARGS__});                   \
		int code = function arguments;                                                 \
		end(call);                                                                     \
		return code;                                                                   \
	}

typedef const void *in;
typedef void *out;
typedef const int *counts;

COLLECTIVE(Barrier, (handle comm), (comm), comm, "barrier", NO_ROOT, 0, 0, false)
COLLECTIVE(Bcast, (out data, int count, handle type, int root, handle comm), (data, count, type, root, comm), comm,
	   "broadcast", root, count, type, false)
COLLECTIVE(Reduce, (in from, out to, int count, handle type, handle op, int root, handle comm),
	   (from, to, count, type, op, root, comm), comm, "reduce", root, count, type, true)
COLLECTIVE(Allreduce, (in from, out to, int count, handle type, handle op, handle comm),
	   (from, to, count, type, op, comm), comm, "all_reduce", NO_ROOT, count, type, true)
COLLECTIVE(Reduce_scatter_block, (in from, out to, int count, handle type, handle op, handle comm),
	   (from, to, count, type, op, comm), comm, "reduce_scatter", NO_ROOT, count, type, true)
COLLECTIVE(Reduce_scatter, (in from, out to, counts each, handle type, handle op, handle comm),
	   (from, to, each, type, op, comm), comm, "reduce_scatter", NO_ROOT, -1, type, true)
COLLECTIVE(Scan, (in from, out to, int count, handle type, handle op, handle comm), (from, to, count, type, op, comm),
	   comm, "scan", NO_ROOT, count, type, true)
COLLECTIVE(Exscan, (in from, out to, int count, handle type, handle op, handle comm), (from, to, count, type, op, comm),
	   comm, "exscan", NO_ROOT, count, type, true)
COLLECTIVE(Allgather, (in from, int sent, handle of, out to, int count, handle type, handle comm),
	   (from, sent, of, to, count, type, comm), comm, "all_gather", NO_ROOT, count, type, false)
COLLECTIVE(Allgatherv, (in from, int sent, handle of, out to, counts each, counts at, handle type, handle comm),
	   (from, sent, of, to, each, at, type, comm), comm, "all_gather_v", NO_ROOT, -1, type, false)
COLLECTIVE(Alltoall, (in from, int sent, handle of, out to, int count, handle type, handle comm),
	   (from, sent, of, to, count, type, comm), comm, "all_to_all", NO_ROOT, count, type, false)
COLLECTIVE(Alltoallv,
	   (in from, counts sent, counts sent_at, handle of, out to, counts each, counts at, handle type, handle comm),
	   (from, sent, sent_at, of, to, each, at, type, comm), comm, "all_to_all_v", NO_ROOT, -1, type, false)
COLLECTIVE(Gather, (in from, int sent, handle of, out to, int count, handle type, int root, handle comm),
	   (from, sent, of, to, count, type, root, comm), comm, "gather", root, -1, type, false)
COLLECTIVE(Gatherv, (in from, int sent, handle of, out to, counts each, counts at, handle type, int root, handle comm),
	   (from, sent, of, to, each, at, type, root, comm), comm, "gather_v", root, -1, type, false)
COLLECTIVE(Scatter, (in from, int sent, handle of, out to, int count, handle type, int root, handle comm),
	   (from, sent, of, to, count, type, root, comm), comm, "scatter", root, -1, type, false)
COLLECTIVE(Scatterv,
	   (in from, counts sent, counts at, handle of, out to, int count, handle type, int root, handle comm),
	   (from, sent, at, of, to, count, type, root, comm), comm, "scatter_v", root, -1, type, false)

/* Communicators come and go by these. */
#define MAKES(name, parameters, arguments)                                                     \
	EXPORTED int MPI_##name parameters                                                     \
	{                                                                                      \
		static int (*function) parameters;                                             \
		if (!function)                                                                 \
			function = (int (*) parameters)next("MPI_" #name);                     \
		int code = function arguments;                                                 \
		if (!code)                                                                     \
			note_made(made);                                                       \
		return code;                                                                   \
	}

MAKES(Comm_dup, (handle comm, out made), (comm, made))
MAKES(Comm_dup_with_info, (handle comm, handle info, out made), (comm, info, made))
MAKES(Comm_split, (handle comm, int color, int key, out made), (comm, color, key, made))
MAKES(Comm_split_type, (handle comm, int type, int key, handle info, out made), (comm, type, key, info, made))
MAKES(Comm_create, (handle comm, handle group, out made), (comm, group, made))
MAKES(Comm_create_group, (handle comm, handle group, int tag, out made), (comm, group, tag, made))
MAKES(Cart_create, (handle comm, int dimensions, counts sizes, counts periods, int reorder, out made),
      (comm, dimensions, sizes, periods, reorder, made))
MAKES(Cart_sub, (handle comm, counts kept, out made), (comm, kept, made))

#define FREES(name)                                                                            \
	EXPORTED int MPI_##name(out comm)                                                      \
	{                                                                                      \
		static int (*function)(out);                                                   \
		if (!function)                                                                 \
			function = (int (*)(out))next("MPI_" #name);                           \
		note_freed(comm);                                                              \
		return function(comm);                                                         \
	}

FREES(Comm_free)
FREES(Comm_disconnect)

static void remove_file(void)
{
	pthread_mutex_lock(&process.lock);
	if (process.recorded)
		record_file_remove(&process.file.file);
	process.recorded = false;
	pthread_mutex_unlock(&process.lock);
}

EXPORTED int MPI_Finalize(void)
{
	int (*function)(void) = (int (*)(void))next("MPI_Finalize");
	int code = function();

	remove_file();
	return code;
}

__attribute__((destructor)) static void end_of_program(void)
{
	if (process.recorded)
		unlink(process.file.file.path);
}
