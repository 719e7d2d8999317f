/* driver WHAT: post to and poll from the device of fake_verbs.c as programs do, and say when it is done, until standard input
   ends. */
#include "fake_verbs.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1000, THREADS = 4, POSTS = 50000 };

static struct ibv_context *context;
static struct ibv_cq queue, empty;
static struct ibv_qp_attr asked;

static struct ibv_qp *connected(int depth, int all_signaled)
{
	struct ibv_qp *qp = fake_qp(&queue, depth, all_signaled);

	asked = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .dest_qp_num = 99, .timeout = 20, .retry_cnt = 7};
	asked.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 5, .flow_label = 3}};
	memcpy(asked.ah_attr.grh.dgid.raw, (unsigned char[16]){[10] = 255, [11] = 255, [12] = 10, 0, 2, 9}, 16);
	ibv_modify_qp(qp, &asked, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN);
	asked.qp_state = IBV_QPS_RTS;
	ibv_modify_qp(qp, &asked, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT);
	return qp;
}

/* Post `count` requests in one call, the last one signaled; returns how many the device took. */
static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, int count)
{
	struct ibv_sge part = {.length = BYTES / 2}, parts[2] = {part, part};
	struct ibv_send_wr requests[64], *bad = NULL;

	for (int i = 0; i < count; i++) {
		requests[i] = (struct ibv_send_wr){.opcode = opcode, .sg_list = parts, .num_sge = 2};
		requests[i].next = i + 1 < count ? requests + i + 1 : NULL;
		requests[i].send_flags = i + 1 < count ? 0 : IBV_SEND_SIGNALED;
	}
	return ibv_post_send(qp, requests, &bad) ? (int)(bad - requests) : count;
}

/* Poll until there is nothing; returns how many completions there were. */
static int drain(void)
{
	struct ibv_wc found[16];
	int all = 0, some;

	while ((some = ibv_poll_cq(&queue, 16, found)) > 0)
		all += some;
	return all;
}

/* Programs that wait poll in vain. */
static void wait_in_vain(void)
{
	struct ibv_wc found;

	ibv_poll_cq(&empty, 1, &found);
}

static void posts(void)
{
	struct ibv_qp *qp = connected(64, 0);

	post(qp, IBV_WR_RDMA_WRITE, 10);
	post(qp, IBV_WR_SEND, 5);
	post(qp, IBV_WR_RDMA_READ, 2);
	drain();
	post(qp, IBV_WR_RDMA_WRITE, 3);
	fake_receive(qp, 7, 300);
	struct ibv_wc found[7];
	ibv_poll_cq(&queue, 7, found);
	/* What the device got, and what the program's own attributes say then. */
	const struct ibv_qp_attr *got = fake_modified;
	printf("%u %d %d %u %d %d\n", got[0].ah_attr.grh.flow_label, got[1].timeout, got[1].retry_cnt, asked.ah_attr.grh.flow_label,
	       asked.timeout, asked.retry_cnt);
}

/* After a request whose completion comes, three that have none. */
static void unsignaled(void)
{
	struct ibv_qp *qp = connected(64, 0);
	struct ibv_sge part = {.length = BYTES};
	struct ibv_send_wr request = {.opcode = IBV_WR_SEND, .sg_list = &part, .num_sge = 1}, *bad;

	post(qp, IBV_WR_SEND, 1);
	drain();
	for (int i = 0; i < 3; i++)
		ibv_post_send(qp, &request, &bad);
}

/* Post, compute for 30 ms, and only then look. */
static void late(void)
{
	struct ibv_qp *qp = connected(64, 0);

	post(qp, IBV_WR_SEND, 1);
	poll(NULL, 0, 30);
	drain();
}

/* Post and poll until standard input ends. */
static void for_long(void)
{
	struct ibv_qp *qp = connected(64, 0);
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	printf("done\n");
	fflush(stdout);
	while (!poll(&input, 1, 1)) {
		post(qp, IBV_WR_SEND, 1);
		drain();
	}
}

/* Ask to be woken, post, and sleep. */
static void woken(void)
{
	struct ibv_qp *qp = connected(64, 0);

	ibv_req_notify_cq(&queue, 0);
	post(qp, IBV_WR_SEND, 2);
	printf("done\n");
	fflush(stdout);
	while (getchar() != EOF)
		continue;
}

/* Keep some requests outstanding, until the device has another address vector for them or the time is over. */
static void moves(void)
{
	struct ibv_qp *qp = connected(64, 0);
	struct ibv_wc completion;
	int posted = 0, found = 0;

	for (int i = 0; i < 1000 && !fake_readdressed.label; i++) {
		posted += post(qp, IBV_WR_SEND, 1);
		if (posted > found + 16)
			found += ibv_poll_cq(&queue, 1, &completion);
		poll(NULL, 0, 1);
	}
	found += drain();
	printf("%d %u %d %lu %d\n", posted - found, fake_readdressed.label, fake_readdressed.state == IBV_QPS_SQD,
	       fake_readdressed.outstanding, qp->state == IBV_QPS_RTS);
}

/* On a device of somebody else, which does not let a queue pair move. */
static void stays(void)
{
	fake_vendor = 4711;
	moves();
}

static void refused(void)
{
	struct ibv_qp *qp = connected(8, 1);

	printf("%d ", post(qp, IBV_WR_SEND, 12));
	printf("%d\n", drain());
	post(qp, IBV_WR_SEND, 4);
	drain();
}

static void failed(void)
{
	struct ibv_qp *qp = connected(64, 0);

	post(qp, IBV_WR_SEND, 2);
	drain();
	post(qp, IBV_WR_SEND, 3);
	fake_fail(qp, IBV_WC_RETRY_EXC_ERR, 0x81);
	drain();
}

/* The device of fake_verbs.c is for one thread at a time. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *post_in_turn(void *qp)
{
	for (int i = 0; i < POSTS; i++) {
		pthread_mutex_lock(&turn);
		post(qp, IBV_WR_SEND, 1);
		drain();
		pthread_mutex_unlock(&turn);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[THREADS];
	struct ibv_qp *qp = connected(64, 0);

	for (int i = 0; i < THREADS; i++)
		pthread_create(all + i, NULL, post_in_turn, qp);
	for (int i = 0; i < THREADS; i++)
		pthread_join(all[i], NULL);
}

static void forked(void)
{
	struct ibv_qp *qp = connected(64, 0);

	post(qp, IBV_WR_SEND, 2);
	if (!fork()) {
		post(qp, IBV_WR_SEND, 5);
		drain();
		wait_in_vain();
		_exit(0);
	}
	wait(NULL);
	drain();
}

static void many(void)
{
	for (int i = 0; i < 4000; i++)
		post(connected(64, 0), IBV_WR_SEND, 1);
	printf("%d\n", drain());
}

static void come_and_go(void)
{
	for (int i = 0; i < 3000; i++) {
		struct ibv_qp *qp = connected(64, 0);
		post(qp, IBV_WR_SEND, 1);
		drain();
		ibv_destroy_qp(qp);
	}
	post(connected(64, 0), IBV_WR_SEND, 3);
	drain();
}

int main(int count, char **words)
{
	const struct {
		const char *name;
		void (*run)(void);
	} scripts[] = {
		{"posts", posts}, {"for_long", for_long}, {"moves", moves}, {"stays", stays}, {"refused", refused},
		{"failed", failed}, {"threads", threads}, {"forked", forked}, {"many", many}, {"come_and_go", come_and_go},
		{"unsignaled", unsignaled}, {"old", refused}, {"late", late}, {"woken", woken},
	};

	fake_layout = count > 1 && !strcmp(words[1], "old") ? NULL : fake_layout;
	context = ibv_open_device(NULL);
	queue.context = empty.context = context;
	for (size_t i = 0; count > 1 && i < sizeof scripts / sizeof *scripts; i++)
		if (!strcmp(words[1], scripts[i].name))
			scripts[i].run();
	wait_in_vain();
	printf("done\n");
	fflush(stdout);
	while (getchar() != EOF)
		continue;
	return 0;
}
