/* MPI_Alltoall of COUNT integers for each rank, ROUNDS times, every element checked; rank 0 prints a line for each round,
   as OSU's benchmark does. Ends with 3 where one is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong(const int *received, int count, int rank, int size)
{
	int found = 0;

	for (int i = 0; i < count * size; i++)
		found += received[i] != i / count * size + rank;
	return found;
}

int main(int argc, char **argv)
{
	int rank, size, bad = 0;
	int count = argc > 1 ? atoi(argv[1]) : 65536, rounds = argc > 2 ? atoi(argv[2]) : 3;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int *sent = malloc(count * size * sizeof *sent), *received = malloc(count * size * sizeof *received);
	if (!sent || !received)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; i < count * size; i++)
		sent[i] = rank * size + i / count;
	if (rank == 0)
		printf("# OSU MPI All-to-All Personalized Exchange Latency Test, by c4bench\n# Size  Avg Latency(us)\n");
	for (int round = 0; round < rounds; round++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		MPI_Alltoall(sent, count, MPI_INT, received, count, MPI_INT, MPI_COMM_WORLD);
		double took = MPI_Wtime() - began;
		bad += wrong(received, count, rank, size);
		if (rank == 0)
			printf("%zu %.3f\n", count * sizeof *sent, took * 1e6);
		fflush(stdout);
	}
	if (bad)
		printf("rank %d: %d elements are wrong\n", rank, bad);
	MPI_Finalize();
	return bad ? 3 : 0;
}
