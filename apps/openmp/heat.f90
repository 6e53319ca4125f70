! Heat in a square plate: Jacobi steps over columns, with the largest change reduced over all threads, and
! output by several threads in order. The output does not depend on the number of threads.
program heat
  use omp_lib
  implicit none
  integer, parameter :: n = 256, steps = 60
  real(8), allocatable :: old(:, :), new(:, :)
  real(8) :: change, factor
  integer :: i, j, step
  common /settings/ factor
!$omp threadprivate(/settings/)

  allocate (old(n, n), new(n, n))
  old = 0d0
  old(1, :) = 1d0
  new = old
  factor = 0.25d0
  do step = 1, steps
    change = 0d0
!$omp parallel do copyin(/settings/) reduction(max:change) schedule(static) private(i)
    do j = 2, n - 1
      do i = 2, n - 1
        new(i, j) = factor*(old(i - 1, j) + old(i + 1, j) + old(i, j - 1) + old(i, j + 1))
        change = max(change, abs(new(i, j) - old(i, j)))
      end do
    end do
!$omp parallel workshare
    old = new
!$omp end parallel workshare
  end do
  print '(a, i0, a, es11.4)', 'steps ', steps, ' change ', change
!$omp parallel do ordered schedule(static, 1)
  do j = 2, n - 1, 36
!$omp ordered
    print '(a, i4, es11.4)', 'column', j, sum(new(:, j))
!$omp end ordered
  end do
end program
