/* Preloaded into the user-mode kernel: nothing of the machine's chance, and nothing of its timing, gets into a lab, and a
   processor with more registers than the kernel was written for carries it. */
#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static uint64_t next_word(void)
{
	static uint64_t state;
	static int seeded;

	if (!seeded) {
		const char *seed = getenv("C4BENCH_SEED");
		state = seed ? strtoull(seed, NULL, 10) : 0;
		seeded = 1;
	}
	state += 0x9E3779B97F4A7C15ull;
	uint64_t z = state;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

/* The only entropy is a stream fixed by C4BENCH_SEED (splitmix64), so that two boots with one seed draw the same keys,
   addresses and hashes. The kernel configuration leaves out the hwrng driver, which would read the machine's /dev/random
   beside it. */
ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
	unsigned char *out = buffer;

	(void)flags;
	for (size_t i = 0; i < length; i++)
		out[i] = (unsigned char)next_word();
	return (ssize_t)length;
}

/* A pipe for the console's output stays as it is, blocking: until the machine has taken what the lab says, the lab's clock
   stands still. Asked to tell when there is room again, the machine would interrupt the lab at a moment of its own, and
   the kernel mixes what it was doing then into its entropy. */
int fcntl64(int descriptor, int command, ...)
{
	struct stat output;
	va_list rest;

	va_start(rest, command);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	if (command == F_SETFL && descriptor == STDOUT_FILENO && !fstat(descriptor, &output) && S_ISFIFO(output.st_mode))
		return 0;
	return (int)syscall(SYS_fcntl, descriptor, command, argument);
}

/* Registers beyond the usual ones are set all together or not at all: the machine refuses fewer bytes than its processor
   has. The kernel knows 2696 of them, up to AVX-512, and with AMX there are some 11000. What it does not know nobody in a
   lab may use, and stays zero. */
static long set_registers(long process, const struct iovec *known)
{
	static unsigned char all[1 << 16];
	unsigned int size, rest;

	__cpuid_count(0xd, 0, rest, size, rest, rest);
	if (known->iov_len >= size || size > sizeof(all))
		return syscall(SYS_ptrace, PTRACE_SETREGSET, process, NT_X86_XSTATE, known);
	memcpy(all, known->iov_base, known->iov_len);
	struct iovec whole = {all, size};
	return syscall(SYS_ptrace, PTRACE_SETREGSET, process, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;

	va_start(rest, request);
	long process = va_arg(rest, pid_t);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
		return set_registers(process, data);
	/* What is peeked at comes back by a pointer from the machine, and as the result from the C library. */
	long word;
	int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
	long result = syscall(SYS_ptrace, request, process, address, peeks ? &word : data);
	if (!peeks || result < 0)
		return result;
	errno = 0;
	return word;
}
