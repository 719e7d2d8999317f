/* What programs call again and again instead of sleeping. Each function does what libc's does, and lets time move where it
   has found nothing. */
#define _GNU_SOURCE
#include "../real.h"
#include "idle.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The real function, looked up at its first call. */
#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real) \
		real = (__typeof__(&name))real_libc(#name)

/* A call that asks without waiting has found `result` things. One that waits sleeps by itself, and what it finds need not be
   what its thread waits for: UCX's own thread finds the same event again until another thread lets it in. */
static int found(int result, int asks)
{
	if (asks && result)
		c4bench_progressed();
	else if (asks)
		c4bench_waited_in_vain();
	return result;
}

int sched_yield(void)
{
	c4bench_waited_in_vain();
	return 0;
}

/* The owner of a spin lock may sleep, also in a sleep of ours: with one processor nobody else would run meanwhile. To have
   the lock is not what the thread waits for: drivers take one at each vain poll. */
int pthread_spin_lock(pthread_spinlock_t *lock)
{
	while (pthread_spin_trylock(lock) == EBUSY)
		c4bench_waited_in_vain();
	return 0;
}

int poll(struct pollfd *files, nfds_t count, int timeout)
{
	REAL(poll);
	return found(real(files, count, timeout), !timeout);
}

int __poll_chk(struct pollfd *files, nfds_t count, int timeout, size_t size)
{
	(void)size;
	return poll(files, count, timeout);
}

static int is_zero(const struct timespec *time)
{
	return time && !time->tv_sec && !time->tv_nsec;
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	REAL(ppoll);
	return found(real(files, count, timeout, mask), is_zero(timeout));
}

int select(int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *timeout)
{
	REAL(select);
	int asks = timeout && !timeout->tv_sec && !timeout->tv_usec;
	return found(real(count, read, write, except, timeout), asks);
}

int pselect(int count, fd_set *read, fd_set *write, fd_set *except, const struct timespec *timeout, const sigset_t *mask)
{
	REAL(pselect);
	return found(real(count, read, write, except, timeout, mask), is_zero(timeout));
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
	REAL(epoll_wait);
	return found(real(epoll, events, most, timeout), !timeout);
}

int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
	REAL(epoll_pwait);
	return found(real(epoll, events, most, timeout, mask), !timeout);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
	REAL(waitpid);
	return found(real(pid, status, options), options & WNOHANG);
}

pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage)
{
	REAL(wait4);
	return found(real(pid, status, options, usage), options & WNOHANG);
}

/* A sleep of no time is a way to yield. */
int usleep(useconds_t us)
{
	REAL(usleep);
	return found(real(us), !us);
}

int nanosleep(const struct timespec *time, struct timespec *rest)
{
	REAL(nanosleep);
	return found(real(time, rest), is_zero(time));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	REAL(clock_gettime);
	c4bench_read_clock();
	return real(clock, time);
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	REAL(gettimeofday);
	c4bench_read_clock();
	return real(time, zone);
}

time_t time(time_t *into)
{
	REAL(time);
	c4bench_read_clock();
	return real(into);
}
