/* A lock that costs two stores while one thread alone takes it: a biased lock (Kawachiya et al., OOPSLA 2002), taken from its
   owner by membarrier(2), which no thread passes in the middle of a store. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct bias {
	_Atomic uintptr_t owner; /* the thread that may take it without a locked instruction */
	atomic_int inside;       /* whether the owner is in it */
	atomic_int shared;       /* whether other threads take it too: then all of them take `held` */
	atomic_int held;
};

/* Have the kernel make membarrier work; without it every lock is shared from the beginning. */
void bias_prepare(void);

int bias_enter_shared(struct bias *lock, uintptr_t self);

/* Each thread's own: its address stands for the thread. */
extern _Thread_local char bias_mine __attribute__((tls_model("initial-exec")));

static inline uintptr_t bias_self(void)
{
	return (uintptr_t)&bias_mine;
}

/* Returns whether this is the owner's way in, which bias_leave has to know. */
static inline int bias_enter(struct bias *lock)
{
	uintptr_t self = bias_self();

	if (__builtin_expect(atomic_load_explicit(&lock->owner, memory_order_relaxed) == self, 1)) {
		atomic_store_explicit(&lock->inside, 1, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (__builtin_expect(!atomic_load_explicit(&lock->shared, memory_order_relaxed), 1))
			return 1;
		atomic_store_explicit(&lock->inside, 0, memory_order_release);
	}
	return bias_enter_shared(lock, self);
}

static inline void bias_leave(struct bias *lock, int owned)
{
	if (owned)
		atomic_store_explicit(&lock->inside, 0, memory_order_release);
	else
		atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#pragma GCC visibility pop
