/* A profiler plugin of NCCL: what a rank's collectives and the proxy steps of its connections do, in the telemetry file
   that c4bench's own ranks write (telemetry_file.h).

   A collective is entered when its kernel starts to run, not when it is put into a stream, which may be long before. It
   has finished when the last of its kernels and proxy operations has; NCCL stops the event of the collective itself when
   it is in the stream. A connection's time is split by the states of its steps: SendGPUWait is data (its own GPU has
   nothing to send), SendPeerWait is credit (the receiver grants none), SendWait is transfer.

   What NCCL keeps for this plugin is numbers, never addresses: with PXN a proxy gets those of another process, and a
   captured graph those of an event that has long ended. Such a number stands for nothing here.

   Nothing here fails NCCL. An error of init would make NCCL unload the plugin, also for other communicators. */
#define _GNU_SOURCE
#include "nccl_abi.h"
#include "say.h"
#include "telemetry_file.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	FUNCTIONS = 16, /* NCCL has 8 collectives */
	STEPS = 16,     /* of an operation at once: NCCL has 8 */
	PEERS = 8,      /* that a collective receives from and that are noted: a ring has 1, a tree 3 */
	PARTS = 256,    /* of a ns, in which shares of the NICs' time are counted: there is no floating point */
	FIRST_PLACES = 64,
	MOST_PLACES = 1 << 16,
};

#define EVENTS (NCCL_COLL | NCCL_P2P | NCCL_PROXY_OP | NCCL_PROXY_STEP | NCCL_KERNEL_CH)

/* What the numbers given to NCCL stand for. */
enum kind { NOTHING, COUNTED, COMM, COLLECTIVE, TRANSFER, STEP, KERNEL };

struct token {
	enum kind kind;
	unsigned int step, comm, place;
	uint32_t life;
};

struct function {
	char name[TELEMETRY_NAME_BYTES];
	uint64_t calls;
};

struct collective {
	uint32_t life;
	bool used, enqueued, begun, moved;
	int channels, children, open, kernels;
	int64_t called_ns, last_ns;
	struct {
		int peer, channels;
	} awaited[PEERS];
	int earlier, later; /* in the order of the calls */
	struct telemetry_op op;
};

/* A proxy operation. `end` is its connection, `collective` is -1 for a send or receive of the program. So many steps
   have been posted, or have arrived (`moved`), and the GPU has read so many. */
struct transfer {
	uint32_t life, collective_life;
	bool used, sends;
	int end, collective, peer, steps, moved, read;
	bool awaits;
	int states[STEPS];
	uint64_t bytes[STEPS];
};

/* Either end of a connection; `place` is -1 where there was none left. So many of its steps wait for GPU and credit. */
struct end {
	int peer, channel, place;
	bool sends;
	uint32_t gpu_waits, credit_waits;
	int64_t read_parts, shared_parts;
	struct telemetry_conn conn;
	struct telemetry_tally arrived;
};

/* Entries of `size` bytes, whose first is `life`, another number each time a place is given away. */
struct pool {
	void *entries;
	int places, frees;
	int *free;
};

struct comm {
	pthread_mutex_t lock;
	uint32_t life;
	bool open, shows_kernels, lost;
	int number, place, rank, ranks;
	int first, last; /* collectives under way */
	struct function functions[FUNCTIONS];
	struct pool collectives, transfers;
	struct end *ends;
	int end_count, end_room;
	/* The time of this communicator's share of its NICs, divided among the connections in transfer at once. */
	int carried;
	int64_t share_parts, share_since_ns;
};

static struct {
	pthread_mutex_t lock;
	pid_t pid;
	int open;
	struct telemetry_file file;
	struct comm comms[TELEMETRY_COMMS];
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *give(struct token token)
{
	return (void *)(uintptr_t)((uint64_t)token.kind | (uint64_t)token.step << 4 | (uint64_t)token.comm << 8 |
				   (uint64_t)token.place << 16 | (uint64_t)token.life << 32);
}

static struct token taken(const void *number)
{
	uint64_t bits = (uintptr_t)number;

	return (struct token){bits & 15, bits >> 4 & 15, bits >> 8 & 255, bits >> 16 & 65535, (uint32_t)(bits >> 32)};
}

/* The communicator of a number, locked; NULL for one that has ended or never was. */
static struct comm *locked(struct token token)
{
	if (token.comm >= TELEMETRY_COMMS)
		return NULL;
	struct comm *comm = &process.comms[token.comm];
	pthread_mutex_lock(&comm->lock);
	if (comm->open && !comm->lost)
		return comm;
	pthread_mutex_unlock(&comm->lock);
	return NULL;
}

/* Lives begin at a number of this process's own, so that those of another one are hardly ever taken for ours. */
static uint32_t first_life(void)
{
	return (uint32_t)telemetry_now_ns() * 2654435761u ^ (uint32_t)getpid();
}

static bool enlarge(struct pool *pool, size_t size)
{
	int places = pool->places ? 2 * pool->places : FIRST_PLACES;
	char *entries = places > MOST_PLACES ? NULL : realloc(pool->entries, (size_t)places * size);

	if (!entries)
		return false;
	pool->entries = entries;
	int *free_places = realloc(pool->free, (size_t)places * sizeof(*free_places));
	if (!free_places)
		return false;
	pool->free = free_places;
	memset(entries + (size_t)pool->places * size, 0, (size_t)(places - pool->places) * size);
	for (int place = places - 1; place >= pool->places; place--) {
		uint32_t life = first_life();
		memcpy(entries + (size_t)place * size, &life, sizeof(life));
		pool->free[pool->frees++] = place;
	}
	pool->places = places;
	return true;
}

/* A place in a pool, -1 where there is no memory. */
static int open_place(struct pool *pool, size_t size)
{
	return pool->frees || enlarge(pool, size) ? pool->free[--pool->frees] : -1;
}

static void empty(struct pool *pool)
{
	free(pool->entries);
	free(pool->free);
	*pool = (struct pool){0};
}

static struct collective *collective_at(const struct comm *comm, int place)
{
	return (struct collective *)comm->collectives.entries + place;
}

static struct transfer *transfer_at(const struct comm *comm, int place)
{
	return (struct transfer *)comm->transfers.entries + place;
}

static struct collective *collective_of(const struct comm *comm, struct token token)
{
	if (token.place >= (unsigned int)comm->collectives.places)
		return NULL;
	struct collective *found = collective_at(comm, (int)token.place);
	return found->used && found->life == token.life ? found : NULL;
}

static struct transfer *transfer_of(const struct comm *comm, struct token token)
{
	if (token.place >= (unsigned int)comm->transfers.places)
		return NULL;
	struct transfer *found = transfer_at(comm, (int)token.place);
	return found->used && found->life == token.life ? found : NULL;
}

/* Names, as c4bench has them: all_reduce for AllReduce, float32 for ncclFloat32. */

static bool has_root(const char *function)
{
	return !strcmp(function, "Broadcast") || !strcmp(function, "Reduce") || !strcmp(function, "Gather") ||
	       !strcmp(function, "Scatter");
}

static void name_kind(char *name, const char *function, int root)
{
	char long_name[2 * TELEMETRY_NAME_BYTES] = "", *to = long_name;

	if (!strcmp(function, "AlltoAll"))
		function = "AllToAll";
	for (const char *from = function; *from && to < long_name + sizeof(long_name) - 2; from++) {
		if (isupper((unsigned char)*from) && from > function)
			*to++ = '_';
		*to++ = (char)tolower((unsigned char)*from);
	}
	if (has_root(function)) /* calls with different roots do not match */
		snprintf(to, (size_t)(long_name + sizeof(long_name) - to), "@%d", root);
	memcpy(name, long_name, TELEMETRY_NAME_BYTES);
}

static void name_dtype(char *name, const char *datatype)
{
	if (!strncmp(datatype, "nccl", 4))
		datatype += 4;
	for (int at = 0; at < TELEMETRY_NAME_BYTES && datatype[at]; at++)
		name[at] = (char)tolower((unsigned char)datatype[at]);
}

static void name_algorithm(char *name, const char *algo, const char *proto)
{
	char long_name[64] = "";

	snprintf(long_name, sizeof(long_name), "%s/%s", algo ? algo : "", proto ? proto : "");
	for (int at = 0; at < TELEMETRY_NAME_BYTES; at++)
		name[at] = (char)tolower((unsigned char)long_name[at]);
}

/* The bits that a datatype's name ends with, or has before its format: float16, float8e4m3. */
static uint64_t bytes_of(const char *datatype)
{
	const char *digit = strpbrk(datatype, "0123456789");

	return digit ? strtoul(digit, NULL, 10) / 8 : 0;
}

/* Collectives */

static void store(const struct comm *comm, const struct collective *collective)
{
	telemetry_write_op(&process.file, comm->place, &collective->op);
}

/* The number of a call among all of its communicator: NCCL counts those of each function, and these add up. -1 for one
   that NCCL does not count, such as those of a captured graph that other ranks may not see. */
static int64_t sequence(struct comm *comm, const char *function, uint64_t number)
{
	struct function *known = comm->functions, *end = known + FUNCTIONS;
	uint64_t others = 0;

	while (known < end && known->name[0] && strncmp(known->name, function, sizeof(known->name)))
		known++;
	if (known == end || number < known->calls)
		return -1;
	strncpy(known->name, function, sizeof(known->name) - 1);
	known->calls = number + 1;
	for (struct function *each = comm->functions; each < end; each++)
		others += each == known ? 0 : each->calls;
	return (int64_t)(others + number);
}

static void link_last(struct comm *comm, int place)
{
	struct collective *added = collective_at(comm, place);

	added->earlier = comm->last;
	added->later = -1;
	*(comm->last < 0 ? &comm->first : &collective_at(comm, comm->last)->later) = place;
	comm->last = place;
}

static void free_collective(struct comm *comm, struct collective *ended)
{
	int place = (int)(ended - collective_at(comm, 0));

	*(ended->earlier < 0 ? &comm->first : &collective_at(comm, ended->earlier)->later) = ended->later;
	*(ended->later < 0 ? &comm->last : &collective_at(comm, ended->later)->earlier) = ended->earlier;
	ended->used = false;
	ended->life++;
	comm->collectives.free[comm->collectives.frees++] = place;
}

static void enter(const struct comm *comm, struct collective *collective, int64_t now_ns)
{
	if (collective->op.entered_ns)
		return;
	collective->op.entered_ns = now_ns;
	if (collective->moved)
		collective->op.started_ns = now_ns;
	store(comm, collective);
}

/* The kernel has begun on a channel. Until a communicator has shown one, its calls count as entered at once. */
static void begin(struct comm *comm, struct collective *collective, int64_t now_ns)
{
	comm->shows_kernels = true;
	if (collective->begun)
		return;
	collective->begun = true;
	if (!collective->op.entered_ns) {
		enter(comm, collective, now_ns);
		return;
	}
	if (collective->op.entered_ns != collective->called_ns)
		return;
	collective->op.entered_ns = now_ns;
	if (collective->op.started_ns)
		collective->op.started_ns = now_ns;
	store(comm, collective);
}

/* Data has moved. What arrives before the kernel runs waits for it. */
static void note_moved(const struct comm *comm, struct collective *collective, int64_t now_ns)
{
	if (collective->moved)
		return;
	collective->moved = true;
	if (collective->op.entered_ns) {
		collective->op.started_ns = now_ns;
		store(comm, collective);
	}
}

static bool idle(const struct collective *collective)
{
	return collective->enqueued && collective->children && !collective->open;
}

static void finish(struct comm *comm, struct collective *collective)
{
	struct telemetry_op *op = &collective->op;

	if (!op->entered_ns)
		enter(comm, collective, collective->last_ns);
	op->finished_ns = collective->last_ns > op->started_ns ? collective->last_ns : op->started_ns;
	if (op->finished_ns < op->entered_ns)
		op->finished_ns = op->entered_ns;
	store(comm, collective);
	free_collective(comm, collective);
}

/* Finishes a collective of which nothing is under way any more. Those of a communicator end in order, so what has been
   idle before it has ended too, even if NCCL named more channels than kernels have come for. */
static void end_if_done(struct comm *comm, struct collective *collective)
{
	if (!idle(collective) || (collective->begun && collective->kernels < collective->channels))
		return;
	uint64_t seq = collective->op.seq;
	finish(comm, collective);
	while (comm->first >= 0 && collective_at(comm, comm->first)->op.seq < seq &&
	       idle(collective_at(comm, comm->first)))
		finish(comm, collective_at(comm, comm->first));
}

static void end_child(struct comm *comm, struct collective *collective, int64_t now_ns)
{
	collective->open--;
	collective->last_ns = now_ns;
	end_if_done(comm, collective);
}

static void begin_child(struct collective *collective)
{
	collective->children++;
	collective->open++;
}

static void describe(struct telemetry_op *op, const struct nccl_event *event)
{
	const char *datatype = event->coll.datatype ? event->coll.datatype : "";

	name_kind(op->kind, event->coll.func, event->coll.root);
	name_dtype(op->dtype, datatype);
	name_algorithm(op->algorithm, event->coll.algo, event->coll.proto);
	op->size_bytes = event->coll.count * bytes_of(datatype);
}

/* A communicator that cannot be recorded whole is not recorded: a rank would seem to lag behind the others. */
static void give_up(struct comm *comm)
{
	comm->lost = true;
	telemetry_close_comm(&process.file, comm->place);
	say("a communicator is no longer recorded: there is no memory for it");
}

static void *start_collective(struct comm *comm, const struct nccl_event *event, int64_t now_ns)
{
	int64_t seq = event->coll.func ? sequence(comm, event->coll.func, event->coll.seq) : -1;

	if (seq < 0)
		return NULL;
	int place = open_place(&comm->collectives, sizeof(struct collective));
	if (place < 0) {
		give_up(comm);
		return NULL;
	}
	struct collective *collective = collective_at(comm, place);
	*collective = (struct collective){.life = collective->life, .used = true, .channels = event->coll.channels,
					  .called_ns = now_ns, .op = {.seq = (uint64_t)seq}};
	describe(&collective->op, event);
	link_last(comm, place);
	if (!comm->shows_kernels)
		enter(comm, collective, now_ns);
	if (c4bench_attach_process)
		c4bench_attach_process((uint64_t)now_ns);
	return give((struct token){COLLECTIVE, 0, (unsigned int)comm->number, (unsigned int)place, collective->life});
}

/* Who is awaited */

static void count_awaited(const struct comm *comm, struct collective *collective, int peer, int more)
{
	int at = 0;

	while (at < PEERS && collective->awaited[at].peer != peer)
		at++;
	for (int free = 0; at == PEERS && free < PEERS; free++)
		if (!collective->awaited[free].channels && more > 0)
			at = free;
	if (at == PEERS || peer < 0 || peer >= TELEMETRY_RANKS)
		return;
	collective->awaited[at].peer = peer;
	collective->awaited[at].channels += more;
	unsigned char bit = (unsigned char)(1 << peer % 8), *byte = &collective->op.awaits[peer / 8];
	unsigned char before = *byte;
	*byte = (unsigned char)(collective->awaited[at].channels ? before | bit : before & ~bit);
	if (*byte != before && collective->op.entered_ns)
		store(comm, collective);
}

/* A receiver awaits its peer when the GPU has read all that has arrived, and more is to come. Where it has not, its own
   GPU is awaited. */
static void await(const struct comm *comm, struct collective *collective, struct transfer *transfer)
{
	bool awaits = transfer->used && transfer->moved == transfer->read && transfer->moved < transfer->steps;

	if (awaits != transfer->awaits)
		count_awaited(comm, collective, transfer->peer, awaits ? 1 : -1);
	transfer->awaits = awaits;
}

/* Connections */

static int find_end(const struct comm *comm, const struct nccl_event *event)
{
	for (int at = 0; at < comm->end_count; at++) {
		const struct end *end = &comm->ends[at];
		if (end->peer == event->proxy_op.peer && end->channel == event->proxy_op.channel &&
		    end->sends == !!event->proxy_op.is_send)
			return at;
	}
	return -1;
}

/* A new end, -1 where there is no memory. Without a place in the file it is followed and not recorded. */
static int add_end(struct comm *comm, const struct nccl_event *event, int64_t now_ns)
{
	if (comm->end_count == comm->end_room) {
		int room = comm->end_room ? 2 * comm->end_room : FIRST_PLACES;
		struct end *ends = realloc(comm->ends, (size_t)room * sizeof(*ends));
		if (!ends)
			return -1;
		comm->ends = ends;
		comm->end_room = room;
	}
	struct end *end = &comm->ends[comm->end_count];
	*end = (struct end){.peer = event->proxy_op.peer, .channel = event->proxy_op.channel,
			    .sends = event->proxy_op.is_send, .conn.since_ns = now_ns};
	const struct telemetry_end named = {comm->place, end->peer, "", "", (uint32_t)end->channel};
	end->place = end->sends ? telemetry_open_send(&process.file, &named, &end->conn)
				: telemetry_open_receive(&process.file, &named);
	if (end->place < 0)
		say("some connections are not recorded: there are over %d, or there is no memory", TELEMETRY_CONNS);
	return comm->end_count++;
}

static int64_t share_reads(struct comm *comm, int64_t now_ns)
{
	if (comm->carried)
		comm->share_parts += (now_ns - comm->share_since_ns) * PARTS / comm->carried;
	comm->share_since_ns = now_ns;
	return comm->share_parts;
}

static enum telemetry_state state_of(const struct end *end)
{
	if (end->conn.outstanding)
		return TELEMETRY_TRANSFER;
	if (end->credit_waits)
		return TELEMETRY_CREDIT;
	return end->gpu_waits ? TELEMETRY_DATA : TELEMETRY_IDLE;
}

/* Publishes a sending end, and adds the time since it changed to the state that it was in. */
static void update_send(struct comm *comm, struct end *end, int64_t now_ns)
{
	struct telemetry_conn *conn = &end->conn;
	enum telemetry_state state = state_of(end);
	int64_t *spent_ns[] = {NULL, &conn->credit_ns, &conn->data_ns, &conn->transfer_ns};
	int64_t reads = share_reads(comm, now_ns);

	if (conn->state == TELEMETRY_TRANSFER)
		end->shared_parts += reads - end->read_parts;
	end->read_parts = reads;
	conn->shared_ns = end->shared_parts / PARTS;
	comm->carried += (state == TELEMETRY_TRANSFER) - (conn->state == TELEMETRY_TRANSFER);
	if (state != conn->state) {
		if (conn->state)
			*spent_ns[conn->state] += now_ns - conn->since_ns;
		conn->state = state;
		conn->since_ns = now_ns;
	}
	if (end->place >= 0)
		telemetry_write_send(&process.file, end->place, conn);
}

/* Proxy operations */

static struct end *end_of(const struct comm *comm, const struct transfer *transfer)
{
	return &comm->ends[transfer->end];
}

static struct collective *parent_of(const struct comm *comm, const struct transfer *transfer)
{
	struct token token = {.place = (unsigned int)transfer->collective, .life = transfer->collective_life};

	return transfer->collective < 0 ? NULL : collective_of(comm, token);
}

static void *start_transfer(struct comm *comm, const struct nccl_event *event, int64_t now_ns)
{
	struct token parent = taken(event->parent);
	struct collective *collective = parent.kind == COLLECTIVE && (int)parent.comm == comm->number
						? collective_of(comm, parent) : NULL;
	int place = open_place(&comm->transfers, sizeof(struct transfer));
	int end = find_end(comm, event);

	if (end < 0)
		end = add_end(comm, event, now_ns);
	if (place < 0 || end < 0) {
		give_up(comm);
		return NULL;
	}
	struct transfer *transfer = transfer_at(comm, place);
	*transfer = (struct transfer){.life = transfer->life, .used = true, .sends = event->proxy_op.is_send, .end = end,
				      .collective = collective ? (int)parent.place : -1, .peer = event->proxy_op.peer,
				      .collective_life = parent.life, .steps = event->proxy_op.steps};
	if (collective) {
		begin_child(collective);
		if (!transfer->sends)
			await(comm, collective, transfer);
	}
	if (transfer->sends) {
		end_of(comm, transfer)->conn.owed += (uint32_t)transfer->steps;
		update_send(comm, end_of(comm, transfer), now_ns);
	}
	return give((struct token){TRANSFER, 0, (unsigned int)comm->number, (unsigned int)place, transfer->life});
}

/* Counts a step in or out of a sender's state. */
static void count_send(struct end *end, int state, uint32_t more)
{
	if (state == NCCL_SEND_GPU_WAIT)
		end->gpu_waits += more;
	else if (state == NCCL_SEND_PEER_WAIT)
		end->credit_waits += more;
	else if (state == NCCL_SEND_WAIT)
		end->conn.outstanding += more;
}

static void post(const struct comm *comm, struct transfer *transfer, int64_t now_ns)
{
	struct collective *collective = parent_of(comm, transfer);
	struct end *end = end_of(comm, transfer);

	telemetry_count(&end->conn.posted, now_ns);
	if (transfer->moved++ < transfer->steps)
		end->conn.owed--;
	if (collective)
		note_moved(comm, collective, now_ns);
}

static void change_send(struct comm *comm, struct transfer *transfer, int step, int state, int64_t now_ns)
{
	struct end *end = end_of(comm, transfer);
	struct collective *collective = parent_of(comm, transfer);
	int before = transfer->states[step];

	count_send(end, before, -1u);
	count_send(end, state, 1);
	transfer->states[step] = state;
	/* The GPU has given data, so the kernel runs. */
	if (before == NCCL_SEND_GPU_WAIT && collective)
		enter(comm, collective, now_ns);
	if (state == NCCL_SEND_WAIT)
		post(comm, transfer, now_ns);
	update_send(comm, end, now_ns);
}

static void acknowledge(struct transfer *transfer, struct end *end, int step, int64_t now_ns)
{
	end->conn.messages++;
	end->conn.size_bytes += transfer->bytes[step];
	end->conn.last_progress_ns = now_ns;
}

static void change_receive(struct comm *comm, struct transfer *transfer, int step, int state, int64_t now_ns)
{
	struct end *end = end_of(comm, transfer);
	struct collective *collective = parent_of(comm, transfer);
	bool arrives = transfer->states[step] == NCCL_RECV_WAIT;

	transfer->states[step] = state;
	if (!arrives)
		return;
	telemetry_count(&end->arrived, now_ns);
	if (end->place >= 0)
		telemetry_write_receive(&process.file, end->place, &end->arrived);
	transfer->moved++;
	if (!collective)
		return;
	note_moved(comm, collective, now_ns);
	await(comm, collective, transfer);
}

static void *start_step(const struct comm *comm, struct token parent, int step)
{
	struct transfer *transfer = transfer_of(comm, parent);
	int at = step % STEPS;

	if (!transfer || step < 0 || transfer->states[at])
		return NULL;
	transfer->bytes[at] = 0;
	parent.kind = STEP;
	parent.step = (unsigned int)at;
	return give(parent);
}

static void stop_receive(const struct comm *comm, struct transfer *transfer, int step)
{
	struct collective *collective = parent_of(comm, transfer);

	transfer->states[step] = 0;
	transfer->read++;
	if (collective)
		await(comm, collective, transfer);
}

static void stop_step(struct comm *comm, struct transfer *transfer, int step, int64_t now_ns)
{
	if (!transfer->sends) {
		stop_receive(comm, transfer, step);
		return;
	}
	if (transfer->states[step] == NCCL_SEND_WAIT)
		acknowledge(transfer, end_of(comm, transfer), step, now_ns);
	count_send(end_of(comm, transfer), transfer->states[step], -1u);
	transfer->states[step] = 0;
	update_send(comm, end_of(comm, transfer), now_ns);
}

static void stop_transfer(struct comm *comm, struct transfer *transfer, int64_t now_ns)
{
	struct collective *collective = parent_of(comm, transfer);
	int left = transfer->steps - transfer->moved;

	for (int step = 0; step < STEPS; step++)
		if (transfer->states[step])
			stop_step(comm, transfer, step, now_ns);
	if (transfer->sends && left > 0) {
		end_of(comm, transfer)->conn.owed -= (uint32_t)left;
		update_send(comm, end_of(comm, transfer), now_ns);
	}
	transfer->used = false;
	transfer->life++;
	comm->transfers.free[comm->transfers.frees++] = (int)(transfer - transfer_at(comm, 0));
	if (!collective)
		return;
	if (!transfer->sends)
		await(comm, collective, transfer);
	end_child(comm, collective, now_ns);
}

static void *start_kernel(struct comm *comm, struct token parent, int64_t now_ns)
{
	struct collective *collective = collective_of(comm, parent);

	if (!collective)
		return NULL;
	begin_child(collective);
	begin(comm, collective, now_ns);
	parent.kind = KERNEL;
	return give(parent);
}

/* What NCCL calls */

static void *started(struct comm *comm, const struct nccl_event *event, uint64_t type)
{
	struct token parent = taken(event->parent);
	int64_t now_ns = telemetry_now_ns();

	switch (type) {
	case NCCL_COLL:
		return start_collective(comm, event, now_ns);
	case NCCL_PROXY_OP:
		return start_transfer(comm, event, now_ns);
	case NCCL_PROXY_STEP:
		return start_step(comm, parent, event->proxy_step.step);
	case NCCL_KERNEL_CH:
		return parent.kind == COLLECTIVE ? start_kernel(comm, parent, now_ns) : NULL;
	default:
		return NULL;
	}
}

/* The number that says which communicator an event is of; a step and a kernel show it by their parents. */
static struct token owner_of(const void *context, const struct nccl_event *event, uint64_t type)
{
	struct token parent = taken(event->parent), own = taken(context);

	if (type == NCCL_PROXY_STEP)
		return parent.kind == TRANSFER ? parent : (struct token){0};
	if (type == NCCL_PROXY_OP && event->proxy_op.pid != process.pid)
		return (struct token){0};
	return own.kind == COMM && own.comm < TELEMETRY_COMMS && process.comms[own.comm].life == own.life
		       ? own : (struct token){0};
}

static void start(void *context, void **handle, const struct nccl_event *event, uint64_t type)
{
	*handle = NULL;
	/* NCCL counts the collectives of a captured graph only where their group or their call has an event. */
	if (type == NCCL_GROUP || type == NCCL_COLL_API) {
		*handle = give((struct token){.kind = COUNTED});
		return;
	}
	struct token owner = owner_of(context, event, type);
	struct comm *comm = owner.kind == NOTHING ? NULL : locked(owner);
	if (!comm)
		return;
	*handle = started(comm, event, type);
	pthread_mutex_unlock(&comm->lock);
}

static int start_event(void *context, void **handle, struct nccl_event *event)
{
	start(context, handle, event, event->type);
	return NCCL_SUCCESS;
}

static int start_event_v4(void *context, void **handle, struct nccl_event *event)
{
	start(context, handle, event, (uint8_t)event->type);
	return NCCL_SUCCESS;
}

static void stop(struct comm *comm, struct token token)
{
	struct transfer *transfer = token.kind == TRANSFER || token.kind == STEP ? transfer_of(comm, token) : NULL;
	struct collective *collective = transfer ? NULL : collective_of(comm, token);
	int64_t now_ns = telemetry_now_ns();

	if (transfer && token.kind == STEP) {
		stop_step(comm, transfer, (int)token.step, now_ns);
	} else if (transfer) {
		stop_transfer(comm, transfer, now_ns);
	} else if (collective && token.kind == COLLECTIVE) {
		collective->enqueued = true;
		end_if_done(comm, collective);
	} else if (collective && token.kind == KERNEL) {
		collective->kernels++;
		end_child(comm, collective, now_ns);
	}
}

static int stop_event(void *handle)
{
	struct token token = taken(handle);
	struct comm *comm = token.kind <= COMM ? NULL : locked(token);

	if (comm) {
		stop(comm, token);
		pthread_mutex_unlock(&comm->lock);
	}
	return NCCL_SUCCESS;
}

static void change(struct comm *comm, struct token token, int state, const union nccl_state_args *args)
{
	struct transfer *transfer = transfer_of(comm, token);

	/* NCCL says SendPeerWait again each time that it tries to send. */
	if (!transfer || transfer->states[token.step] == state)
		return;
	if (args && (state == NCCL_SEND_WAIT || state == NCCL_RECV_FLUSH_WAIT))
		transfer->bytes[token.step] = args->transferred_bytes;
	if (transfer->sends)
		change_send(comm, transfer, (int)token.step, state, telemetry_now_ns());
	else
		change_receive(comm, transfer, (int)token.step, state, telemetry_now_ns());
}

static int record_event_state(void *handle, int state, union nccl_state_args *args)
{
	struct token token = taken(handle);
	struct comm *comm = token.kind == STEP ? locked(token) : NULL;

	if (comm) {
		change(comm, token, state, args);
		pthread_mutex_unlock(&comm->lock);
	}
	return NCCL_SUCCESS;
}

/* Communicators */

/* The job's rank, -1 where no launcher has said it. */
static int seat_of_process(void)
{
	static const char *const names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
	const char *text = telemetry_first_set(names, sizeof(names) / sizeof(*names));
	char *end = NULL;
	long rank = text ? strtol(text, &end, 10) : -1;

	return text && !*end && rank >= 0 && rank < 1 << 30 ? (int)rank : -1;
}

/* A child of a fork has the memory of its parent, whose file it leaves alone. */
static void forget_parent(void)
{
	for (int at = 0; at < TELEMETRY_COMMS; at++) {
		process.comms[at] = (struct comm){.life = process.comms[at].life + 1};
		pthread_mutex_init(&process.comms[at].lock, NULL);
	}
	process.open = 0;
	process.pid = getpid();
}

static struct comm *free_comm(void)
{
	for (int at = 0; at < TELEMETRY_COMMS; at++)
		if (!process.comms[at].open)
			return &process.comms[at];
	return NULL;
}

/* ID, or NAME-ID where the program has named it. */
static void name_comm(char *to, size_t room, const char *name, uint64_t id)
{
	char own[64] = "";

	if (name)
		telemetry_copy_name(own, sizeof(own), name);
	snprintf(to, room, "%s%s%016llx", own, own[0] ? "-" : "", (unsigned long long)id);
}

static struct comm *open_comm(uint64_t id, const char *comm_name, int ranks, int rank)
{
	char name[160];
	struct comm *comm = free_comm();

	name_comm(name, sizeof(name), comm_name, id);
	const struct telemetry_comm record = {name, rank, ranks};
	int place = comm ? telemetry_open_comm(&process.file, &record) : -1;
	if (place < 0) {
		say("some communicators are not recorded: there are over %d, or there is no memory", TELEMETRY_COMMS);
		return NULL;
	}
	pthread_mutex_lock(&comm->lock);
	comm->number = (int)(comm - process.comms);
	comm->place = place;
	comm->rank = rank;
	comm->ranks = ranks;
	comm->first = comm->last = -1;
	comm->shows_kernels = comm->lost = false;
	memset(comm->functions, 0, sizeof(comm->functions));
	comm->carried = comm->end_count = 0;
	comm->open = true;
	pthread_mutex_unlock(&comm->lock);
	return comm;
}

static void close_comm(struct comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	if (!comm->lost)
		telemetry_close_comm(&process.file, comm->place);
	empty(&comm->collectives);
	empty(&comm->transfers);
	free(comm->ends);
	comm->ends = NULL;
	comm->end_count = comm->end_room = 0;
	comm->open = false;
	comm->life++;
	pthread_mutex_unlock(&comm->lock);
}

static struct comm *join(uint64_t id, const char *name, int ranks, int rank)
{
	if (process.pid != getpid())
		forget_parent();
	if (!process.open) {
		const char *why = telemetry_create(&process.file, ".nccl.ring", seat_of_process());
		if (why) {
			say("NCCL is not recorded: %s (is an agent set up here?): %s", why, process.file.file.path);
			return NULL;
		}
	}
	struct comm *comm = open_comm(id, name, ranks, rank);
	if (comm)
		process.open++;
	else if (!process.open)
		record_file_remove(&process.file.file);
	return comm;
}

/* The mask is one for all communicators: where this one is not recorded, it stays as others have set it. */
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
		nccl_logger log)
{
	(void)nodes;
	(void)log;
	*context = NULL;
	pthread_mutex_lock(&process.lock);
	struct comm *comm = join(id, name, ranks, rank);
	if (comm) {
		*mask |= EVENTS;
		*context = give((struct token){COMM, 0, (unsigned int)comm->number, 0, comm->life});
	}
	pthread_mutex_unlock(&process.lock);
	return NCCL_SUCCESS;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
		   nccl_logger log)
{
	return init(context, id, mask, name, nodes, ranks, rank, log);
}

static int finalize(void *context)
{
	struct token token = taken(context);

	pthread_mutex_lock(&process.lock);
	if (token.kind == COMM && token.comm < TELEMETRY_COMMS && process.pid == getpid()) {
		struct comm *comm = &process.comms[token.comm];
		if (comm->open && comm->life == token.life) {
			close_comm(comm);
			if (!--process.open)
				record_file_remove(&process.file.file);
		}
	}
	pthread_mutex_unlock(&process.lock);
	return NCCL_SUCCESS;
}

/* At the end of the program, which need not finalize anything; its threads may still write. */
__attribute__((destructor)) static void remove_file(void)
{
	if (process.open && process.pid == getpid())
		unlink(process.file.file.path);
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED struct nccl_profiler_v4 ncclProfiler_v4 = {
	"c4bench", init_v4, start_event_v4, stop_event, record_event_state, finalize,
};
EXPORTED struct nccl_profiler_v5 ncclProfiler_v5 = {
	"c4bench", init, start_event, stop_event, record_event_state, finalize, {0},
};
EXPORTED struct nccl_profiler_v5 ncclProfiler_v6 = {
	"c4bench", init, start_event, stop_event, record_event_state, finalize, {0},
};
EXPORTED struct nccl_profiler_v5 ncclProfiler_v7 = {
	"c4bench", init, start_event, stop_event, record_event_state, finalize, {0},
};
