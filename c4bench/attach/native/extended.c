/* Extended completion queues are polled by functions that each queue points to (struct ibv_cq_ex). */
#include "extended.h"

#include "device.h"
#include "table.h"
#include "traffic.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct queue {
	int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
	int (*next_poll)(struct ibv_cq_ex *);
	struct batch batch; /* of the poll that goes on; a queue is polled by one thread at a time */
};

static struct table queues;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct queue *queue_of(struct ibv_cq_ex *cq)
{
	return table_get(&queues, (uintptr_t)cq);
}

int extended_polls(struct ibv_cq *cq)
{
	return queue_of((struct ibv_cq_ex *)cq) != NULL;
}

/* Count the completion that the queue shows now. What it is can be asked of those that succeeded only. */
static void count_shown(struct queue *queue, struct ibv_cq_ex *cq)
{
	struct completion completion = {.number = ibv_wc_read_qp_num(cq), .status = cq->status};

	if (cq->status != IBV_WC_SUCCESS) {
		completion.vendor_err = ibv_wc_read_vendor_err(cq);
	} else {
		completion.received = ibv_wc_read_opcode(cq) & IBV_WC_RECV;
		completion.bytes = completion.received ? ibv_wc_read_byte_len(cq) : 0;
	}
	batch_add(&queue->batch, &completion);
	batch_end(&queue->batch); /* the program goes on before it looks at the next one, and may take any lock */
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
	struct queue *queue = queue_of(cq);
	int result = queue->start_poll(cq, attributes);

	if (!result) {
		progressed();
		queue->batch = (struct batch){.device = device_of(cq->context), .now = now_ns()};
		count_shown(queue, cq);
	} else if (result == ENOENT) {
		qps_flush();
		waited_in_vain();
		note_look(device_of(cq->context), cq);
	}
	return result;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct queue *queue = queue_of(cq);
	int result = queue->next_poll(cq);

	if (!result)
		count_shown(queue, cq);
	return result;
}

static void replace(struct ibv_cq_ex *cq)
{
	struct queue *queue = calloc(1, sizeof *queue);

	if (!queue)
		return;
	queue->start_poll = cq->start_poll;
	queue->next_poll = cq->next_poll;
	pthread_mutex_lock(&lock);
	free(table_take(&queues, (uintptr_t)cq));
	if (table_set(&queues, (uintptr_t)cq, queue)) {
		cq->start_poll = start_poll;
		cq->next_poll = next_poll;
	}
	pthread_mutex_unlock(&lock);
}

/* The queue is asked for what counting needs, too; where the device does not offer that, for what the program wants. */
struct ibv_cq_ex *hooked_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes)
{
	struct device *device = device_of(context);
	uint64_t wanted = attributes->wc_flags;

	attributes->wc_flags |= IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN;
	struct ibv_cq_ex *cq = device->create_cq_ex(context, attributes);
	attributes->wc_flags = wanted;
	if (!cq)
		return device->create_cq_ex(context, attributes);
	if (cq->start_poll && cq->read_qp_num && cq->read_byte_len)
		replace(cq);
	return cq;
}
