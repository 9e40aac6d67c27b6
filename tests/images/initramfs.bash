# Sourced by the recipes that make an initramfs. Needs MODULES, the directory with lib/modules/VERSION inside.

kernel_version=$(ls "$MODULES/lib/modules")

# copy_modules DESTINATION LIST: the modules named in the file LIST, with all that they need
copy_modules() {
  local destination=$1 list=$2 name file
  mkdir -p "$destination/lib/modules/$kernel_version"
  cp "$MODULES/lib/modules/$kernel_version"/modules.{builtin,builtin.modinfo,order} "$destination/lib/modules/$kernel_version/"
  while read -r name; do
    modprobe -d "$MODULES" -S "$kernel_version" --show-depends "$name"
  done < "$list" | awk '/^insmod/{print $2}' | sort -u | while read -r file; do
    install -D -m 644 "$file" "$destination/${file#"$MODULES"/}"
  done
  depmod -b "$destination" "$kernel_version"
}

# start_tree TREE: the directories of an initramfs and a busybox in it
start_tree() {
  mkdir -p "$1"/{bin,proc,sys,dev,run,tmp,mnt,newroot}
  cp "$(command -v busybox)" "$1/bin/busybox"
}

# pack_tree TREE FILE
pack_tree() { (cd "$1" && find . | cpio -o -H newc --quiet -R 0:0 | gzip -1) > "$2"; }
