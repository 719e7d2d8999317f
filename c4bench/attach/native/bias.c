#define _GNU_SOURCE
#include "bias.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local char bias_mine;
static int barriers;

void bias_prepare(void)
{
	barriers = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

enum { OWNED = 0, ASKED = 1, SHARED = 2 };

/* From now on all threads take `held`, as the caller has. The owner either sees that, or is inside now and comes out. */
static void share(struct bias *lock)
{
	atomic_store(&lock->shared, ASKED);
	syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	while (atomic_load(&lock->inside))
		sched_yield();
	atomic_store(&lock->shared, SHARED);
}

int bias_enter_shared(struct bias *lock, uintptr_t self)
{
	uintptr_t nobody = 0;

	if (barriers && atomic_compare_exchange_strong(&lock->owner, &nobody, self)) {
		return bias_enter(lock);
	}
	while (atomic_exchange_explicit(&lock->held, 1, memory_order_acquire))
		sched_yield();
	if (barriers && atomic_load(&lock->shared) != SHARED)
		share(lock);
	return 0;
}
