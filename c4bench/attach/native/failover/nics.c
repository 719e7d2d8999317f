#define _GNU_SOURCE
#include "nics.h"

#include "../real.h"
#include "../say.h"
#include "../table.h"
#include "balance.h"
#include "keeper.h"
#include "next.h"
#include "pairs.h"
#include "pools.h"
#include "queues.h"
#include "relay.h"
#include "writer.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, NAMES_BYTES = 1024 };

atomic_int in_child;
static struct table contexts;
static struct nic *_Atomic all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *next_verbs(const char *name)
{
	void *found = real_dlsym() ? real_dlsym()(RTLD_NEXT, name) : NULL;

	return found ? found : bare_verbs(name);
}

void *bare_verbs(const char *name)
{
	void *found = real_verbs(name);

	return found ? found : real_verbs_newer(name);
}

struct nic *nic_of(struct ibv_context *context)
{
	static struct nic *_Atomic last;
	struct nic *nic = last;

	if (nic && nic->context[OWN] == context)
		return nic;
	nic = table_get(&contexts, (uintptr_t)context);
	if (nic)
		last = nic;
	return nic;
}

struct nic *nics_all(void)
{
	return all;
}

/* The twin of a device by a list `NAME=NAME,...`. Returns 0 where the list has none. */
static int listed(const char *list, const char *name, char twin[NAME_BYTES])
{
	size_t length = strlen(name);

	for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
		if (!strncmp(at, name, length) && at[length] == '=') {
			size_t end = strcspn(at + length + 1, ",");
			snprintf(twin, NAME_BYTES, "%.*s", (int)(end < NAME_BYTES ? end : 0), at + length + 1);
			return *twin != 0;
		}
	return 0;
}

/* Which device is the twin's: as C4BENCH_FAILOVER says, or, where it names none, as the agent knows from the inventory. */
static int twin_name(const char *name, char twin[NAME_BYTES])
{
	const char *given = getenv("C4BENCH_FAILOVER");
	char known[NAMES_BYTES];

	if (given && strchr(given, '='))
		return listed(given, name, twin);
	return relay_twins(known, sizeof known) && listed(known, name, twin);
}

/* The device of a name, opened as the program opens its own; `bare` for a context that nobody watches. */
static struct ibv_context *open_named(const char *name, int bare)
{
	struct ibv_device **(*list_devices)(int *) = (struct ibv_device **(*)(int *))bare_verbs("ibv_get_device_list");
	void (*free_devices)(struct ibv_device **) = (void (*)(struct ibv_device **))bare_verbs("ibv_free_device_list");
	struct ibv_context *(*open)(struct ibv_device *) =
		(struct ibv_context * (*)(struct ibv_device *))(bare ? bare_verbs("ibv_open_device") : next_verbs("ibv_open_device"));
	struct ibv_device **devices = list_devices && free_devices && open ? list_devices(NULL) : NULL;
	struct ibv_context *found = NULL;

	for (struct ibv_device **device = devices; device && *device && !found; device++)
		if (!strcmp((*device)->name, name))
			found = open(*device);
	if (devices)
		free_devices(devices);
	return found;
}

/* Why the second of two NICs cannot stand in for the first; NULL where it can. Learns what their ports are like. */
static const char *unlike(struct ibv_context *own, struct ibv_context *twin, struct ibv_port_attr ports[SIDES])
{
	int (*query)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *) =
		(int (*)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))bare_verbs("ibv_query_port");

	if (!query || query(own, 1, (void *)&ports[OWN]) || query(twin, 1, (void *)&ports[TWIN]))
		return "its port cannot be queried";
	if (ports[OWN].active_mtu != ports[TWIN].active_mtu)
		return "its MTU is another one";
	if (ports[OWN].link_layer != ports[TWIN].link_layer)
		return "it is of another kind of network";
	if (!own->ops.poll_cq || !own->ops.post_send || !own->ops.post_recv || !twin->ops.poll_cq || !verbs_get_ctx(own))
		return "its driver posts by functions of its own";
	return NULL;
}

/* A window's key cannot have a twin: whoever was given it could not go on. */
static struct ibv_mw *no_window(struct ibv_pd *pd, enum ibv_mw_type type)
{
	(void)pd;
	(void)type;
	errno = EOPNOTSUPP;
	return NULL;
}

static void keep_functions(struct nic *nic, int side)
{
	const struct ibv_context_ops *ops = &nic->context[side]->ops;

	nic->of[side] = (struct functions){ops->poll_cq, ops->post_send, ops->post_recv, ops->post_srq_recv, ops->req_notify_cq};
}

static void replace(struct nic *nic)
{
	struct ibv_context *context = nic->context[OWN];
	struct verbs_context *extended = verbs_get_ctx(context);

	keep_functions(nic, OWN);
	keep_functions(nic, TWIN);
	nic->create_qp_ex = extended->create_qp_ex;
	nic->create_cq_ex = extended->create_cq_ex;
	context->ops.poll_cq = queue_poll;
	context->ops.post_send = pair_post_send;
	context->ops.post_recv = pair_post_receive;
	context->ops.post_srq_recv = pool_post_receive;
	context->ops.req_notify_cq = queue_notify;
	context->ops.alloc_mw = no_window;
	if (extended->create_qp_ex)
		extended->create_qp_ex = pair_create_extended;
	if (extended->create_cq_ex)
		extended->create_cq_ex = queue_create_extended;
}

static void watch_ports(struct nic *nic)
{
	for (int side = OWN; side < SIDES; side++) {
		struct ibv_context *context = open_named(nic->context[side]->device->name, 1);
		if (context)
			fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
		nic->events[side] = context;
	}
}

static void add(struct ibv_context *context)
{
	int (*close)(struct ibv_context *) = (int (*)(struct ibv_context *))next_verbs("ibv_close_device");
	static unsigned int opened;
	struct ibv_port_attr ports[SIDES] = {{0}};
	char twin[NAME_BYTES];

	if (!twin_name(context->device->name, twin)) {
		say("%s has no second NIC to go on with", context->device->name);
		return;
	}
	struct nic *nic = calloc(1, sizeof *nic);
	struct ibv_context *other = nic ? open_named(twin, 0) : NULL;
	const char *why = !other ? "it cannot be opened" : unlike(context, other, ports);
	if (why) {
		say("%s is not used when %s fails: %s", twin, context->device->name, why);
		if (other)
			close(other);
		free(nic);
		return;
	}
	nic->context[OWN] = context;
	nic->context[TWIN] = other;
	watch_ports(nic);
	pthread_mutex_lock(&lock);
	nic->number = ++opened;
	for (int side = OWN; side < SIDES; side++)
		balance_know(nic, side, &ports[side]);
	nic->next = all;
	all = nic;
	if (table_set(&contexts, (uintptr_t)context, nic))
		replace(nic);
	pthread_mutex_unlock(&lock);
}

int nic_twin_gid(const struct nic *nic, uint8_t port, int index, union ibv_gid *gid)
{
	int (*query)(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t) =
		(int (*)(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t))bare_verbs(
			"_ibv_query_gid_ex");
	struct ibv_gid_entry own, other;

	if (!query || query(nic->context[OWN], port, (uint32_t)index, &own, 0, sizeof own))
		return -1;
	int mapped = own.gid.raw[10] == 0xff && own.gid.raw[11] == 0xff;
	for (uint32_t i = 0; i < 256; i++)
		if (!query(nic->context[TWIN], port, i, &other, 0, sizeof other) && other.gid_type == own.gid_type &&
		    mapped == (other.gid.raw[10] == 0xff && other.gid.raw[11] == 0xff)) {
			*gid = other.gid;
			return (int)i;
		}
	return -1;
}

static void note_fork(void)
{
	in_child = 1;
	pthread_mutex_init(&lock, NULL);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	static atomic_int prepared;
	NEXT(ibv_open_device, NULL);
	struct ibv_context *context = next(device);

	if (!atomic_exchange(&prepared, 1))
		pthread_atfork(NULL, NULL, note_fork);
	if (context && !in_child)
		add(context);
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	NEXT(ibv_close_device, ENOSYS);
	int (*close_bare)(struct ibv_context *) = (int (*)(struct ibv_context *))bare_verbs("ibv_close_device");

	keeper_lock(); /* its thread looks at contexts */
	pthread_mutex_lock(&lock);
	struct nic *nic = table_take(&contexts, (uintptr_t)context);
	struct ibv_context *events[SIDES] = {NULL, NULL}, *twin = NULL;
	if (nic) {
		if (!in_child)
			keeper_leave(nic);
		memcpy(events, nic->events, sizeof events);
		twin = nic->context[TWIN];
		nic->events[OWN] = nic->events[TWIN] = NULL;
		nic->context[OWN] = nic->context[TWIN] = NULL;
	}
	pthread_mutex_unlock(&lock);
	keeper_unlock();
	for (int side = OWN; side < SIDES; side++)
		if (events[side] && close_bare)
			close_bare(events[side]);
	if (twin)
		next(twin);
	return next(context);
}
