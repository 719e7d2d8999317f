/* A registration is known by the number of its NIC and its keys: a program names it by these alone. */
#include "memory.h"

#include "../say.h"
#include "../table.h"
#include "fence.h"
#include "next.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct region {
	struct ibv_mr *own, *twin;
	struct nic *nic;
};

static struct table domains, regions, local_keys, remote_keys;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t key_of(const struct nic *nic, uint32_t key)
{
	return 1ull << 63 | (uint64_t)nic->number << 32 | key;
}

struct ibv_pd *memory_twin_of(struct ibv_pd *pd)
{
	return pd ? table_get(&domains, (uintptr_t)pd) : NULL;
}

int memory_local_key(const struct nic *nic, uint32_t key, uint32_t *twin)
{
	const struct region *region = table_get(&local_keys, key_of(nic, key));

	if (region)
		*twin = region->twin->lkey;
	return region != NULL;
}

int memory_remote_key(const struct nic *nic, uint32_t key, uint32_t *twin)
{
	const struct region *region = table_get(&remote_keys, key_of(nic, key));

	if (region)
		*twin = region->twin->rkey;
	return region != NULL;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	NEXT(ibv_alloc_pd, NULL);
	struct ibv_pd *pd = next(context);
	const struct nic *nic = nic_of(context);
	struct ibv_pd *twin = pd && nic ? next(nic->context[TWIN]) : NULL;

	if (twin) {
		pthread_mutex_lock(&lock);
		table_set(&domains, (uintptr_t)pd, twin);
		pthread_mutex_unlock(&lock);
	}
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	NEXT(ibv_dealloc_pd, ENOSYS);
	int failed = next(pd);

	if (failed)
		return failed;
	pthread_mutex_lock(&lock);
	struct ibv_pd *twin = table_take(&domains, (uintptr_t)pd);
	pthread_mutex_unlock(&lock);
	if (twin)
		next(twin);
	return 0;
}

static void take_out(const struct region *region)
{
	table_take(&regions, (uintptr_t)region->own);
	table_take(&local_keys, key_of(region->nic, region->own->lkey));
	table_take(&remote_keys, key_of(region->nic, region->own->rkey));
}

/* Returns 0, with nothing added, where a table is full: keys that stayed in one would be found for later memory. */
static int add(struct ibv_mr *own, struct ibv_mr *twin, struct region *region)
{
	*region = (struct region){own, twin, nic_of(own->context)};
	pthread_mutex_lock(&lock);
	int known = table_set(&regions, (uintptr_t)own, region) && table_set(&local_keys, key_of(region->nic, own->lkey), region) &&
		    table_set(&remote_keys, key_of(region->nic, own->rkey), region);
	if (!known)
		take_out(region);
	pthread_mutex_unlock(&lock);
	return known;
}

/* The region of a registration, which is no longer known; NULL where it has none. A child leaves its parent's alone. */
static struct region *take(struct ibv_mr *own)
{
	if (in_child)
		return NULL;
	pthread_mutex_lock(&lock);
	struct region *region = table_get(&regions, (uintptr_t)own);
	if (region)
		take_out(region);
	pthread_mutex_unlock(&lock);
	return region;
}

static int deregister(struct ibv_mr *mr)
{
	int (*next)(struct ibv_mr *) = (int (*)(struct ibv_mr *))next_verbs("ibv_dereg_mr");

	return next ? next(mr) : ENOSYS;
}

/* What is not registered twice cannot be sent or received by the twin: then a failure of the NIC stays one. */
static struct ibv_mr *pair_up(struct ibv_mr *own, struct ibv_mr *twin)
{
	struct region *region = twin ? malloc(sizeof *region) : NULL;

	if (region && add(own, twin, region))
		return own;
	say("memory is not registered at the second NIC: what uses it does not survive a failure");
	if (twin)
		deregister(twin);
	free(region);
	return own;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	NEXT(ibv_reg_mr, NULL);
	struct ibv_mr *own = next(pd, address, length, access);
	struct ibv_pd *twin = memory_twin_of(pd);

	return own && twin ? pair_up(own, next(twin, address, length, access)) : own;
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
{
	NEXT(ibv_reg_mr_iova, NULL);
	struct ibv_mr *own = next(pd, address, length, iova, access);
	struct ibv_pd *twin = memory_twin_of(pd);

	return own && twin ? pair_up(own, next(twin, address, length, iova, access)) : own;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)
{
	NEXT(ibv_reg_mr_iova2, NULL);
	struct ibv_mr *own = next(pd, address, length, iova, access);
	struct ibv_pd *twin = memory_twin_of(pd);

	return own && twin ? pair_up(own, next(twin, address, length, iova, access)) : own;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int file, int access)
{
	NEXT(ibv_reg_dmabuf_mr, NULL);
	struct ibv_mr *own = next(pd, offset, length, iova, file, access);
	struct ibv_pd *twin = memory_twin_of(pd);

	return own && twin ? pair_up(own, next(twin, offset, length, iova, file, access)) : own;
}

/* The NIC may give its keys to other memory next: nobody may know the twin's keys by them any more. */
int ibv_dereg_mr(struct ibv_mr *own)
{
	NEXT(ibv_dereg_mr, ENOSYS);
	struct region *region = take(own);

	if (region) {
		fence_forget_key(region->nic, own->rkey);
		next(region->twin);
		free(region);
	}
	return next(own);
}

/* Changed memory has other keys, or lies elsewhere: its twin goes. */
int ibv_rereg_mr(struct ibv_mr *own, int flags, struct ibv_pd *pd, void *address, size_t length, int access)
{
	NEXT(ibv_rereg_mr, ENOSYS);
	struct region *region = take(own);

	if (region) {
		say("memory that was registered again is not registered at the second NIC: what uses it does not survive a failure");
		fence_forget_key(region->nic, own->rkey);
		deregister(region->twin);
		free(region);
	}
	return next(own, flags, pd, address, length, access);
}
