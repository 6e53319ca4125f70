! Large arrays of a module and of a common block, whose neighbours belong to different threads, and atomic
! updates of some of their elements.
module fields
  implicit none
  integer, parameter :: n = 60000
  real(8), save :: u(n), total
  real(8) :: v(n)
  integer :: hits(n)
  common /arrays/ v, hits
end module
program commons
  use fields
  implicit none
  integer :: i, round
  real(8) :: s
!$omp parallel do
  do i = 1, n
    u(i) = i; v(i) = 0; hits(i) = 0
  end do
  do round = 1, 10
!$omp parallel do schedule(static, 1)
    do i = 1, n
      v(i) = v(i) + u(n + 1 - i)
    end do
!$omp parallel do schedule(static, 1)
    do i = 1, n
      u(i) = u(i) + 1
    end do
  end do
!$omp parallel do
  do i = 1, 400
!$omp atomic
    hits(n / 2) = hits(n / 2) + i
!$omp atomic
    hits(mod(i, 4) * 15000 + 1) = hits(mod(i, 4) * 15000 + 1) + 1
  end do
  s = 0
!$omp parallel do reduction(+: s)
  do i = 1, n
    s = s + v(i) * mod(i, 3) + u(i) + hits(i)
  end do
  print '(f20.1, 5i8)', s, hits(n / 2), hits(1), hits(15001), hits(30001), hits(45001)
end program
