/* MPI_Allreduce of COUNT floats ROUNDS times, every element checked; rank 0 prints a line for each, as OSU's do. Before
   each it computes for COMPUTE us, which is twice as long once it has got SIGUSR1, and in half of all rounds, at random,
   once it has got SIGUSR2. */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void ask(int number)
{
	asked = number;
}

static void compute(int us)
{
	int slow = asked == SIGUSR1 || (asked == SIGUSR2 && rand() % 2);

	if (us)
		usleep((useconds_t)(slow ? 2 * us : us));
}

static int wrong(const float *sums, int count, int size)
{
	int found = 0;

	for (int i = 0; i < count; i++)
		found += sums[i] != (float)(size * (size - 1) / 2 + size * (i % 7));
	return found;
}

int main(int argc, char **argv)
{
	int rank, size, count, rounds, compute_us, bad = 0;

	signal(SIGUSR1, ask);
	signal(SIGUSR2, ask);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	count = argc > 1 ? atoi(argv[1]) : 262144;
	rounds = argc > 2 ? atoi(argv[2]) : 5;
	compute_us = argc > 3 ? atoi(argv[3]) : 0;
	float *terms = malloc(count * sizeof(float)), *sums = malloc(count * sizeof(float));
	if (!terms || !sums)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; i < count; i++)
		terms[i] = rank + i % 7;
	if (rank == 0)
		printf("# OSU MPI Allreduce Latency Test, by c4bench\n# Size  Avg Latency(us)\n");
	for (int round = 0; round < rounds; round++) {
		compute(compute_us);
		MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		MPI_Allreduce(terms, sums, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		double took = MPI_Wtime() - began;
		bad += wrong(sums, count, size);
		if (rank == 0)
			printf("%zu %.3f\n", count * sizeof(float), took * 1e6);
		fflush(stdout);
	}
	if (bad)
		printf("rank %d: %d elements are wrong\n", rank, bad);
	MPI_Finalize();
	return bad != 0;
}
