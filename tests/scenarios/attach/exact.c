/* exact send|write|read DEVICE GID BYTES COUNT [SERVER_ADDRESS]: COUNT messages of BYTES from the client to the server (read: the
   client fetches them), of which every byte and the order are checked. Ends with 0 where all were right, 2 where a request or a
   connection ended with an error, 3 where something came wrong, twice or not at all.

   send: SEND, SEND with immediate and WRITE with immediate in turn, with credits by SEND; one request in four is signaled.
   write: a WRITE of the message, then one of its number as a flag that the server looks at in memory; it then writes over both,
   and returns a credit by a WRITE. What comes twice shows as a flag of the past.
   read: READs of places that the server never changes.

   EXACT_STREAMS=N does so N times at once, each with a queue pair of its own; with EXACT_PAUSE_US clients pause in the middle. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 32, SIGNAL_EVERY = 4, CREDITS_AT_ONCE = 8, PORT = 18600, RECEIVES = 2 * SLOTS, OUTSTANDING = 2 * SLOTS, LOOK_US = 50,
       STREAMS_AT_MOST = 8 };

struct place {
	union ibv_gid gid;
	uint32_t number, key;
	uint64_t address;
};

/* Of each stream. */
static _Thread_local struct ibv_context *context;
static _Thread_local struct ibv_cq *queue;
static _Thread_local struct ibv_qp *qp;
static _Thread_local struct ibv_mr *memory;
static _Thread_local struct place here, there;
static _Thread_local uint8_t *slots, *sources;
static _Thread_local volatile uint64_t *flags, *credits;
static _Thread_local int connection; /* to the other end's process */
static _Thread_local uint64_t posted_requests, longest_ns, last_ns;

static char **words;
static size_t bytes;
static uint64_t count, requests; /* messages; what a client posts for them */
static int server;
static useconds_t pause_us;

static void fail(int code, const char *what, uint64_t number)
{
	fprintf(stderr, "exact: %s at %llu of %llu\n", what, (unsigned long long)number, (unsigned long long)count);
	exit(code);
}

static void check(int holds, const char *what)
{
	if (!holds)
		fail(2, what, 0);
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Something has come or gone: the time between two of these is a pause. */
static void progress(void)
{
	uint64_t now = now_ns();

	if (last_ns && now - last_ns > longest_ns)
		longest_ns = now - last_ns;
	last_ns = now;
}

/* After a look in vain. A program that looks at memory alone would not learn that the other end has ended. */
static void wait_a_little(void)
{
	char byte;

	if (!recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT))
		fail(2, "the other end has gone", 0);
	usleep(LOOK_US);
}

static uint64_t word_of(uint64_t number, size_t at)
{
	return (number * 0x9E3779B97F4A7C15ull) ^ (at * 0xBF58476D1CE4E5B9ull);
}

static void fill(uint8_t *into, uint64_t number)
{
	for (size_t at = 0; at + 8 <= bytes; at += 8) {
		uint64_t word = word_of(number, at);
		memcpy(into + at, &word, 8);
	}
}

static void verify(const uint8_t *from, uint64_t number)
{
	for (size_t at = 0; at + 8 <= bytes; at += 8) {
		uint64_t word = word_of(number, at);
		if (memcmp(from + at, &word, 8))
			fail(3, "wrong bytes", number);
	}
}

/* Connect by TCP, exchange places. */
static void meet(const char *address, int stream)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(PORT + stream))};
	int listening = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (address) {
		check(inet_pton(AF_INET, address, &at.sin_addr) == 1, "address");
		for (int tries = 0; connect(listening, (struct sockaddr *)&at, sizeof at); tries++, usleep(10000)) {
			check(tries < 200, "connect");
			close(listening);
			listening = socket(AF_INET, SOCK_STREAM, 0);
		}
		connection = listening;
	} else {
		check(!bind(listening, (struct sockaddr *)&at, sizeof at) && !listen(listening, 1), "listen");
		connection = accept(listening, NULL, NULL);
	}
	check(connection >= 0, "connection");
	check(write(connection, &here, sizeof here) == sizeof here, "hello");
	check(recv(connection, &there, sizeof there, MSG_WAITALL) == sizeof there, "hello");
}

static void open_device(const char *name, int gid)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	for (int i = 0; devices && devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			context = ibv_open_device(devices[i]);
	check(context != NULL, "device");
	struct ibv_pd *domain = ibv_alloc_pd(context);
	size_t all = 2 * SLOTS * bytes + (SLOTS + 1) * 8 + RECEIVES * bytes;
	slots = calloc(1, all);
	sources = slots + SLOTS * bytes;
	flags = (void *)(sources + SLOTS * bytes);
	credits = flags + SLOTS;
	memory = ibv_reg_mr(domain, slots, all, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	queue = ibv_create_cq(context, 4 * OUTSTANDING, NULL, NULL, 0);
	struct ibv_qp_init_attr made = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC,
					.cap = {OUTSTANDING, RECEIVES, 1, 1, 16}};
	qp = ibv_create_qp(domain, &made);
	check(memory && queue && qp && !ibv_query_gid(context, 1, gid, &here.gid), "queue pair");
	here.number = qp->qp_num;
	here.key = memory->rkey;
	here.address = (uintptr_t)slots;
}

static void connect_qp(int gid)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = there.number,
				      .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
				      .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = there.gid, .sgid_index = (uint8_t)gid,
											 .hop_limit = 64}}};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};

	check(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	check(!ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	check(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void post(enum ibv_wr_opcode opcode, void *from, size_t length, uint64_t to, uint64_t number, int flags_of)
{
	struct ibv_sge part = {(uintptr_t)from, (uint32_t)length, memory->lkey};
	struct ibv_send_wr request = {.wr_id = number, .opcode = opcode, .sg_list = &part, .num_sge = length ? 1 : 0,
				      .send_flags = (unsigned int)flags_of, .imm_data = htonl((uint32_t)number),
				      .wr.rdma = {there.address + to, there.key}};
	struct ibv_send_wr *bad;

	if (!server && posted_requests++ == requests / 2)
		usleep(pause_us);
	if (ibv_post_send(qp, &request, &bad))
		fail(2, "post", number);
}

static void post_receive(uint64_t number)
{
	struct ibv_sge part = {(uintptr_t)(credits + 1) + number % RECEIVES * bytes, (uint32_t)bytes, memory->lkey};
	struct ibv_recv_wr request = {.wr_id = number, .sg_list = &part, .num_sge = 1}, *bad;

	if (ibv_post_recv(qp, &request, &bad))
		fail(2, "post of a receive", number);
}

/* The next completion, if there is one. */
static int next(struct ibv_wc *wc)
{
	int found = ibv_poll_cq(queue, 1, wc);

	if (found > 0 && wc->status) {
		fprintf(stderr, "exact: %s (%d)\n", ibv_wc_status_str(wc->status), wc->status);
		exit(2);
	}
	if (found > 0)
		progress();
	else
		wait_a_little();
	return found > 0;
}

/* --- send --- */

static void send_client(void)
{
	uint64_t sent = 0, done = 0, allowed = SLOTS, receives = 0;
	struct ibv_wc wc;

	while (receives < RECEIVES)
		post_receive(receives++);
	while (done < count || allowed < count) {
		if (sent < count && sent < allowed && sent < done + SLOTS) {
			uint8_t *from = sources + sent % SLOTS * bytes;
			int signaled = sent % SIGNAL_EVERY == SIGNAL_EVERY - 1 || sent + 1 == count ? IBV_SEND_SIGNALED : 0;
			static const enum ibv_wr_opcode kinds[3] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM};
			fill(from, sent);
			post(kinds[sent % 3], from, bytes, sent % SLOTS * bytes, sent, signaled);
			sent++;
			continue;
		}
		if (!next(&wc))
			continue;
		if (wc.opcode & IBV_WC_RECV) {
			if (ntohl(wc.imm_data) != (uint32_t)(allowed - SLOTS + CREDITS_AT_ONCE))
				fail(3, "a credit that is not the next one", allowed);
			allowed += CREDITS_AT_ONCE;
			post_receive(receives++);
		} else {
			if (wc.wr_id < done || wc.wr_id >= sent)
				fail(3, "a completion that is not the next one", wc.wr_id);
			done = wc.wr_id + 1;
		}
	}
}

static void send_server(void)
{
	uint64_t receives = 0, credited = 0;
	struct ibv_wc wc;

	while (receives < RECEIVES)
		post_receive(receives++);
	for (uint64_t number = 0; number < count;) {
		if (!next(&wc))
			continue;
		if (!(wc.opcode & IBV_WC_RECV))
			continue;
		uint64_t kind = number % 3;
		uint8_t *at = kind == 2 ? slots + number % SLOTS * bytes : (uint8_t *)(credits + 1) + wc.wr_id % RECEIVES * bytes;
		if (wc.wr_id != number || (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) != (kind == 2))
			fail(3, "a message that is not the next one", number);
		if (kind && ntohl(wc.imm_data) != (uint32_t)number)
			fail(3, "another message's immediate", number);
		verify(at, number);
		memset(at, 0xee, bytes);
		post_receive(receives++);
		number++;
		if (number % CREDITS_AT_ONCE == 0 || number == count) {
			credited += CREDITS_AT_ONCE;
			post(IBV_WR_SEND_WITH_IMM, NULL, 0, 0, credited, IBV_SEND_SIGNALED);
		}
	}
}

/* --- write --- */

static void write_client(void)
{
	uint64_t sent = 0, done = 0;
	struct ibv_wc wc;

	while (done < count) {
		if (sent < count && sent < *credits + SLOTS && sent < done + SLOTS) {
			uint64_t flag = sent + 1, slot = sent % SLOTS;
			fill(sources + slot * bytes, sent);
			post(IBV_WR_RDMA_WRITE, sources + slot * bytes, bytes, slot * bytes, sent, 0);
			post(IBV_WR_RDMA_WRITE, &flag, 8, 2 * SLOTS * bytes + slot * 8, sent, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
			sent++;
		} else if (next(&wc)) {
			if (wc.wr_id != done)
				fail(3, "a completion that is not the next one", wc.wr_id);
			done++;
		}
	}
	while (*credits < count)
		wait_a_little();
}

static void write_server(void)
{
	uint64_t posted = 0, done = 0;
	struct ibv_wc wc;

	for (uint64_t number = 0; number < count; number++) {
		uint64_t slot = number % SLOTS, flag, credit = number + 1;
		while (!(flag = flags[slot]))
			wait_a_little();
		progress();
		if (flag != number + 1)
			fail(3, "a flag of the past", number);
		verify(slots + slot * bytes, number);
		memset(slots + slot * bytes, 0xee, bytes);
		flags[slot] = 0;
		while (posted - done == SLOTS)
			done += (uint64_t)next(&wc);
		post(IBV_WR_RDMA_WRITE, &credit, 8, 2 * SLOTS * bytes + SLOTS * 8, number, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
		posted++;
	}
	while (done < posted)
		done += (uint64_t)next(&wc);
	for (int slot = 0; slot < SLOTS; slot++)
		if (flags[slot])
			fail(3, "a flag that came twice", flags[slot]);
}

/* --- read --- */

static void read_client(void)
{
	uint64_t sent = 0, done = 0;
	struct ibv_wc wc;

	while (done < count) {
		if (sent < count && sent < done + SLOTS) {
			uint64_t slot = sent % SLOTS;
			memset(sources + slot * bytes, 0xee, bytes);
			post(IBV_WR_RDMA_READ, sources + slot * bytes, bytes, sent * 7 % SLOTS * bytes, sent, IBV_SEND_SIGNALED);
			sent++;
		} else if (next(&wc)) {
			if (wc.wr_id != done)
				fail(3, "a completion that is not the next one", wc.wr_id);
			verify(sources + done % SLOTS * bytes, done * 7 % SLOTS);
			done++;
		}
	}
}

static void read_server(void)
{
	char end;

	check(recv(connection, &end, 1, MSG_WAITALL) == 1, "the client's end");
}

static void *run(void *stream)
{
	const char *mode = words[1];
	int gid = atoi(words[3]);
	char ready = 'r';

	open_device(words[2], gid);
	if (server && !strcmp(mode, "read"))
		for (uint64_t slot = 0; slot < SLOTS; slot++)
			fill(slots + slot * bytes, slot);
	meet(server ? NULL : words[6], (int)(intptr_t)stream);
	connect_qp(gid);
	check(write(connection, &ready, 1) == 1 && recv(connection, &ready, 1, MSG_WAITALL) == 1, "the other end");
	if (!strcmp(mode, "send"))
		server ? send_server() : send_client();
	else if (!strcmp(mode, "write"))
		server ? write_server() : write_client();
	else if (server)
		read_server();
	else
		read_client();
	if (!(server && !strcmp(mode, "read")))
		check(write(connection, &ready, 1) == 1 && (!strcmp(mode, "read") || recv(connection, &ready, 1, MSG_WAITALL) == 1),
		      "the other end");
	printf("exact: %llu messages, longest pause %.6f s\n", (unsigned long long)count, (double)longest_ns * 1e-9);
	ibv_destroy_qp(qp);
	return NULL;
}

static long setting(const char *name, long otherwise)
{
	const char *given = getenv(name);

	return given ? atol(given) : otherwise;
}

int main(int argc, char **argv)
{
	pthread_t threads[STREAMS_AT_MOST];
	long streams = setting("EXACT_STREAMS", 1);

	check(argc >= 6 && streams >= 1 && streams <= STREAMS_AT_MOST, "usage: exact send|write|read DEVICE GID BYTES COUNT [SERVER]");
	words = argv;
	bytes = (size_t)atol(argv[4]);
	count = (uint64_t)atoll(argv[5]);
	requests = strcmp(argv[1], "write") ? count : 2 * count;
	server = argc < 7;
	pause_us = (useconds_t)setting("EXACT_PAUSE_US", 0);
	for (long stream = 1; stream < streams; stream++)
		check(!pthread_create(&threads[stream], NULL, run, (void *)(intptr_t)stream), "a thread");
	run(NULL);
	for (long stream = 1; stream < streams; stream++)
		pthread_join(threads[stream], NULL);
	return 0;
}
