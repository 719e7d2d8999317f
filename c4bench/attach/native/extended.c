/* Extended completion queues are polled by functions that each queue points to (struct ibv_cq_ex). */
#include "device.h"
#include "say.h"
#include "table.h"
#include "time.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct queue {
	int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
	int (*next_poll)(struct ibv_cq_ex *);
};

static struct table queues;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct queue *queue_of(struct ibv_cq_ex *cq)
{
	return table_get(&queues, (uintptr_t)cq);
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
	int result = queue_of(cq)->start_poll(cq, attributes);

	if (!result)
		progressed();
	else if (result == ENOENT)
		waited_in_vain();
	return result;
}

struct ibv_cq_ex *hooked_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes)
{
	struct ibv_cq_ex *cq = device_of(context)->create_cq_ex(context, attributes);
	struct queue *queue = cq && cq->start_poll ? calloc(1, sizeof *queue) : NULL;

	if (!queue)
		return cq;
	queue->start_poll = cq->start_poll;
	queue->next_poll = cq->next_poll;
	pthread_mutex_lock(&lock);
	free(table_take(&queues, (uintptr_t)cq));
	if (table_set(&queues, (uintptr_t)cq, queue))
		cq->start_poll = start_poll;
	pthread_mutex_unlock(&lock);
	return cq;
}
