/* In a lab computing takes no time, so a program that looks again and again for what only time can bring stands still. A
   sleep after each vain look lets time move. It is 500 ns, the shortest of the lab's clock, and 1/128 of the wait so far: so
   a wait of 250 us or more is found less than 1 % late, a shorter one less than 3 us, and one of seconds costs some thousand
   sleeps. */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SHORTEST_NS = 500, LONGEST_NS = 1000000, GROWTH = 128, READINGS = 8 };

struct wait {
	uint64_t slept_ns;
	unsigned int readings;
};

static _Thread_local struct wait current __attribute__((tls_model("initial-exec")));

static void sleep_on(struct wait *wait)
{
	uint64_t ns = SHORTEST_NS + wait->slept_ns / GROWTH;
	struct timespec sleep = {0, (long)(ns < LONGEST_NS ? ns : LONGEST_NS)};
	int before = errno;

	wait->slept_ns += (uint64_t)sleep.tv_nsec;
	syscall(SYS_nanosleep, &sleep, NULL);
	errno = before;
}

void c4bench_waited_in_vain(void)
{
	current.readings = 0;
	sleep_on(&current);
}

void c4bench_progressed(void)
{
	current = (struct wait){0};
}

void c4bench_read_clock(void)
{
	if (++current.readings < READINGS)
		return;
	current.readings = 0;
	sleep_on(&current);
}
