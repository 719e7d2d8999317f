/* An MPI program that knows nothing of c4bench: iterations of computing and an all-reduce, in which one rank may do
   otherwise: mpi_rank ITERATIONS RANK busy|late|count|function|root|none FROM */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1 << 16 };

static double numbers[COUNT], sums[COUNT];

static void other(const char *how, int rank)
{
	if (!strcmp(how, "busy"))
		sleep(3600);
	else if (!strcmp(how, "late"))
		usleep(60000);
	else if (!strcmp(how, "function"))
		MPI_Bcast(sums, COUNT, MPI_DOUBLE, (rank + 1) % 2, MPI_COMM_WORLD);
	else if (!strcmp(how, "count"))
		MPI_Allreduce(numbers, sums, COUNT / 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

int main(int count, char **words)
{
	int rank, size, iterations = count > 1 ? atoi(words[1]) : 0;
	MPI_Comm same, halves;

	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_dup(MPI_COMM_WORLD, &same);
	MPI_Comm_split(same, rank % 2, -rank, &halves);
	for (int at = 0; at < COUNT; at++)
		numbers[at] = rank;
	for (int at = 0; at < iterations; at++) {
		usleep(30000);
		if (rank == atoi(words[2]) && at >= atoi(words[4]))
			other(words[3], rank);
		MPI_Allreduce(numbers, sums, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		if (sums[COUNT - 1] != size * (size - 1) / 2)
			return 3;
		MPI_Bcast(sums, 1, MPI_INT, 0, same);
		MPI_Barrier(halves);
	}
	MPI_Comm_free(&halves);
	MPI_Comm_free(&same);
	MPI_Finalize();
	return 0;
}
