# Process 1 of a pretend machine: gives it a name, its own file systems and its files in /etc, then reaps processes.
# The end of its input ends it, and with it every process of the machine.
#   machine_start.sh NAME DIRECTORY SHARED
# DIRECTORY holds the machine's home and its files in /etc. SHARED is a directory that all machines have, at its own path.
set -eu
name=$1 directory=$2 shared=$3
hostname "$name"
mount --make-rprivate /
exec 3<"$directory" 4<"$shared"
for place in /tmp /var/tmp /run /dev/shm; do
  mount -t tmpfs -o "mode=1777,size=${TMPFS_SIZE:-256m}" tmpfs "$place"
done
mkdir -p /run/sshd "$shared" "$HOME"
# As they stand: their paths are hidden now, or lead to what was mounted above.
mount --no-canonicalize --bind /proc/self/fd/4 "$shared"
mount --no-canonicalize --bind /proc/self/fd/3/home "$HOME"
for file in /proc/self/fd/3/etc/*; do
  mount --no-canonicalize --bind "$file" "/etc/${file##*/}"
done
exec 3<&- 4<&-
ip link set lo up
echo started
read -r _ || exit 0
