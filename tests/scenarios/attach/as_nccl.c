/* as_nccl DEVICE GID_INDEX BYTES MESSAGES [SERVER]: writes messages from the client to the server, each noticed by the
   receiver. It has no libibverbs of its own: all functions are looked up as NCCL does (ibvsymbols.cc). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 18600, DEPTH = 64 };

struct end {
	union ibv_gid gid;
	uint64_t address;
	uint32_t number, key;
};

static void *verbs;
static struct ibv_context *context;
static struct ibv_cq *queue;
static struct ibv_qp *qp;
static struct ibv_mr *memory;
static char *buffer;

static void fail(const char *what)
{
	printf("%s failed\n", what);
	exit(1);
}

static void *look_up(const char *name)
{
	void *found = dlvsym(verbs, name, "IBVERBS_1.1");

	if (!found)
		fail(name);
	return found;
}

#define CALL(name, ...) ((__typeof__(&name))look_up(#name))(__VA_ARGS__)

static void open_library(void)
{
	const char *given = getenv("NCCL_IBVERBS_LIB"), *names[] = {given ? given : "libibverbs.so", "libibverbs.so.1"};

	for (int i = 0; i < 2 && !verbs; i++)
		verbs = dlopen(names[i], RTLD_NOW);
	if (!verbs)
		fail("dlopen");
}

static void open_device(const char *wanted)
{
	int count;
	struct ibv_device **devices = CALL(ibv_get_device_list, &count);

	for (int i = 0; i < count; i++)
		if (!strcmp(devices[i]->name, wanted))
			context = CALL(ibv_open_device, devices[i]);
	if (!context)
		fail("ibv_open_device");
}

static void make(size_t bytes)
{
	struct ibv_pd *domain = CALL(ibv_alloc_pd, context);

	buffer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	memory = ((struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int)) look_up("ibv_reg_mr"))(
		domain, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	queue = CALL(ibv_create_cq, context, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_qp_init_attr asked = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC};
	asked.cap = (struct ibv_qp_cap){.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1};
	qp = CALL(ibv_create_qp, domain, &asked);
	struct ibv_qp_attr first = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	if (CALL(ibv_modify_qp, qp, &first, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("to INIT");
}

static void connect_to(const struct end *far, int gid)
{
	struct ibv_qp_attr next = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = far->number};

	next.max_dest_rd_atomic = next.max_rd_atomic = 1;
	next.min_rnr_timer = 12;
	next.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
	next.ah_attr.grh = (struct ibv_global_route){.dgid = far->gid, .sgid_index = (uint8_t)gid, .hop_limit = 64};
	if (CALL(ibv_modify_qp, qp, &next, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("to RTR");
	next.qp_state = IBV_QPS_RTS;
	next.timeout = 14;
	next.retry_cnt = next.rnr_retry = 7;
	if (CALL(ibv_modify_qp, qp, &next, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		 IBV_QP_MAX_QP_RD_ATOMIC))
		fail("to RTS");
}

static void receive(void)
{
	struct ibv_recv_wr request = {.num_sge = 0}, *bad;

	if (ibv_post_recv(qp, &request, &bad))
		fail("ibv_post_recv");
}

static void send_one(size_t bytes, const struct end *far)
{
	struct ibv_sge part = {(uint64_t)(uintptr_t)buffer, (uint32_t)bytes, memory->lkey};
	struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM}, *bad;

	request.send_flags = IBV_SEND_SIGNALED;
	request.wr.rdma.remote_addr = far->address;
	request.wr.rdma.rkey = far->key;
	if (ibv_post_send(qp, &request, &bad))
		fail("ibv_post_send");
}

static int completed(void)
{
	struct ibv_wc found[16];
	int count = ibv_poll_cq(queue, 16, found);

	for (int i = 0; i < count; i++)
		if (found[i].status)
			fail("a message");
	return count;
}

/* A connection to the other end; the server waits for it. */
static int meet(const char *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	int end = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

	if (server) {
		inet_pton(AF_INET, server, &address.sin_addr);
		return connect(end, (struct sockaddr *)&address, sizeof address) ? -1 : end;
	}
	setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	return bind(end, (struct sockaddr *)&address, sizeof address) || listen(end, 1) ? -1 : accept(end, NULL, NULL);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int count, char **words)
{
	if (count < 5)
		return 2;
	int gid = atoi(words[2]), messages = atoi(words[4]), sends = count > 5, posted = 0, done = 0;
	size_t bytes = strtoul(words[3], NULL, 10);
	struct end near = {.number = 0}, far;

	open_library();
	open_device(words[1]);
	make(bytes);
	int other = meet(sends ? words[5] : NULL);
	CALL(ibv_query_gid, context, 1, gid, &near.gid);
	near.address = (uintptr_t)buffer, near.number = qp->qp_num, near.key = memory->rkey;
	if (write(other, &near, sizeof near) != sizeof near || read(other, &far, sizeof far) != sizeof far)
		fail("the meeting");
	connect_to(&far, gid);
	for (; !sends && posted < DEPTH; posted++)
		receive();
	if (write(other, "r", 1) != 1 || read(other, words[0], 1) != 1)
		fail("the meeting");
	for (double began = seconds(); done < messages;) {
		for (; posted < messages && posted - done < DEPTH; posted++)
			sends ? send_one(bytes, &far) : receive();
		done += completed();
		if (done == messages)
			printf("%zu bytes at %.4f Gbit/s\n", bytes * (size_t)messages, 8e-9 * (double)bytes * messages / (seconds() - began));
	}
	return 0;
}
