/* MPI_Allreduce of COUNT floats ROUNDS times, every element checked; rank 0 prints a line for each, as OSU's do. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong(const float *sums, int count, int size)
{
	int found = 0;

	for (int i = 0; i < count; i++)
		found += sums[i] != (float)(size * (size - 1) / 2 + size * (i % 7));
	return found;
}

int main(int argc, char **argv)
{
	int rank, size, count, rounds, bad = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	count = argc > 1 ? atoi(argv[1]) : 262144;
	rounds = argc > 2 ? atoi(argv[2]) : 5;
	float *terms = malloc(count * sizeof(float)), *sums = malloc(count * sizeof(float));
	if (!terms || !sums)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; i < count; i++)
		terms[i] = rank + i % 7;
	if (rank == 0)
		printf("# OSU MPI Allreduce Latency Test, by c4bench\n# Size  Avg Latency(us)\n");
	for (int round = 0; round < rounds; round++) {
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
