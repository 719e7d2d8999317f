/* A program posts and polls by functions that its device's context points to (struct ibv_context_ops): they are replaced
   once the context is open. A context that is not of the layout this library knows is left as it is. */
#define _GNU_SOURCE
#include "device.h"

#include "form.h"
#include "real.h"
#include "say.h"
#include "table.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct ibv_context *open_function(struct ibv_device *);
typedef int close_function(struct ibv_context *);

static struct table devices;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int opened;

struct device *device_of(struct ibv_context *context)
{
	static struct device *_Atomic last;
	struct device *device = last;

	if (device && device->context == context)
		return device;
	device = table_get(&devices, (uintptr_t)context);
	last = device;
	return device;
}

/* Why a context's functions cannot be replaced; NULL where they can. */
static const char *obstacle(struct ibv_context *context)
{
	const struct verbs_context *extended = verbs_get_ctx(context);

	if (watched_by_another())
		return watched_by_another();
	if (!extended)
		return "its context is of libibverbs' first interface";
	if (extended->sz < offsetof(struct verbs_context, context) - offsetof(struct verbs_context, create_cq_ex))
		return "its context is shorter than this library knows";
	if (!context->ops.poll_cq || !context->ops.post_send || !context->ops.req_notify_cq)
		return "its driver posts by functions of its own";
	return NULL;
}

static void replace(struct device *device)
{
	struct ibv_context *context = device->context;
	struct verbs_context *extended = verbs_get_ctx(context);

	device->poll_cq = context->ops.poll_cq;
	device->req_notify_cq = context->ops.req_notify_cq;
	device->post_send = context->ops.post_send;
	device->create_cq_ex = extended->create_cq_ex;
	context->ops.poll_cq = hooked_poll_cq;
	context->ops.req_notify_cq = hooked_req_notify_cq;
	context->ops.post_send = hooked_post_send;
	if (extended->create_cq_ex)
		extended->create_cq_ex = hooked_create_cq_ex;
}

static void add(struct ibv_context *context)
{
	const char *why = obstacle(context);
	struct device *device = why ? NULL : calloc(1, sizeof *device);

	if (!device) {
		say("%s is not watched: %s", context->device->name, why ? why : "no memory");
		return;
	}
	device->context = context;
	pthread_mutex_lock(&lock);
	device->number = ++opened;
	if (table_set(&devices, (uintptr_t)context, device))
		replace(device);
	pthread_mutex_unlock(&lock);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	static open_function *real;

	if (!real)
		real = (open_function *)real_verbs("ibv_open_device");
	if (!real)
		return NULL;
	struct ibv_context *context = real(device);
	if (context)
		add(context);
	return context;
}

/* The record of a closed device stays, without a context: another one may get its address. */
int ibv_close_device(struct ibv_context *context)
{
	static close_function *real;

	if (!real)
		real = (close_function *)real_verbs("ibv_close_device");
	pthread_mutex_lock(&lock);
	struct device *device = table_take(&devices, (uintptr_t)context);
	if (device)
		device->context = NULL;
	pthread_mutex_unlock(&lock);
	return real ? real(context) : ENOSYS;
}
