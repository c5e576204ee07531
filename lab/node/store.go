package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/text"
)

// A Store holds images that are unpacked once for all nodes, in containerd's own format. A separate containerd fills
// it, and ends before a node takes the images over:
//
//	archives ── import ──> Dir/root ── links ──> the root of each node's containerd
//
// The nodes share the blobs and the files of layers by hard links, because containerd never changes them in place. They
// copy the databases. A node can therefore change and remove its own images without an effect on other nodes. The zero
// value is no store.
type Store struct {
	Dir string // in the file system of the nodes' files; short, because a socket's path has at most 107 bytes
}

// storeConfig disables the plugins that run containers.
var storeConfig = template.Must(template.New("store").Parse(`version = 2
root = "{{.}}/root"
state = "{{.}}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.native",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "{{.}}/s"
[ttrpc]
  address = "{{.}}/t"
`))

func (s Store) path(name string) string { return filepath.Join(s.Dir, name) }

// Command returns the command of the containerd that fills the store.
func (s Store) Command() (*exec.Cmd, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the store of images: %w", err)
	}
	var config strings.Builder
	if err := storeConfig.Execute(&config, s.Dir); err != nil {
		return nil, fmt.Errorf("configure the store of images: %w", err)
	}
	if err := os.WriteFile(s.path("containerd.toml"), []byte(config.String()), 0o600); err != nil {
		return nil, fmt.Errorf("configure the store of images: %w", err)
	}
	cmd := exec.Command("containerd", "--config", s.path("containerd.toml"))
	// The machine must not see the mounts that containerd makes while it unpacks.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd, nil
}

// Serves returns an error unless the store's containerd accepts connections.
func (s Store) Serves(ctx context.Context) error { return Listens(ctx, s.path("s")) }

// Import imports the archives into the store and records their fingerprints.
func (s Store) Import(ctx context.Context, archives []string) error {
	u, leased, done, err := s.unpacker(ctx)
	if err != nil {
		return err
	}
	group, leased := errgroup.WithContext(leased)
	for _, archive := range archives {
		group.Go(func() error {
			err := u.unpack(leased, archive)
			if errors.Is(err, errNoLayout) {
				err = s.importByContainerd(leased, archive)
			}
			if err != nil {
				return fmt.Errorf("import %s: %w", archive, err)
			}
			return nil
		})
	}
	err = group.Wait()
	done()
	if err != nil {
		return err
	}
	data, err := json.Marshal(fingerprints(archives))
	if err != nil {
		return fmt.Errorf("encode the list of images: %w", err)
	}
	if err := os.WriteFile(s.path("archives.json"), data, 0o600); err != nil {
		return fmt.Errorf("write the list of images: %w", err)
	}
	return nil
}

// importByContainerd imports any archive that containerd understands.
func (s Store) importByContainerd(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, "ctr", "--address", s.path("s"), "--namespace", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text.LastLine(string(out)))
	}
	return nil
}

// Missing returns the archives whose current content is not in the store.
func (s Store) Missing(archives []string) []string {
	have := map[string]string{}
	if data, err := os.ReadFile(s.path("archives.json")); err == nil {
		_ = json.Unmarshal(data, &have) // an unreadable list counts as empty
	}
	now := fingerprints(archives)
	return slices.DeleteFunc(slices.Clone(archives), func(a string) bool { return have[a] != "" && have[a] == now[a] })
}

// fingerprints maps each archive to its size and time, which change with its content.
func fingerprints(archives []string) map[string]string {
	prints := map[string]string{}
	for _, a := range archives {
		if info, err := os.Stat(a); err == nil {
			prints[a] = fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
		}
	}
	return prints
}

// own are the parts of containerd's root that belong to the store alone: its identity and unfinished work.
var own = []string{"io.containerd.grpc.v1.introspection", "io.containerd.content.v1.content/ingest", "tmpmounts"}

// Fill gives the node the store's images, unless the node has a containerd root already. The store's containerd must
// have ended.
func (c Config) Fill(s Store) error {
	to := c.path("fs/var/lib/containerd")
	if s.Dir == "" || exists(to) || !exists(s.path("archives.json")) {
		return nil
	}
	began := to + ".new"
	if err := os.RemoveAll(began); err != nil {
		return fmt.Errorf("fill %s with images: %w", c.Name, err)
	}
	if err := cloneTree(s.path("root"), began); err != nil {
		return fmt.Errorf("fill %s with images: %w", c.Name, err)
	}
	if err := os.Rename(began, to); err != nil {
		return fmt.Errorf("fill %s with images: %w", c.Name, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// cloneTree copies the directory from to to. It makes hard links to files that never change.
func cloneTree(from, to string) error {
	var dirs []string // outermost first
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case slices.Contains(own, name):
			return skip(entry)
		case entry.IsDir():
			dirs = append(dirs, name)
			return os.MkdirAll(target, 0o700)
		case strings.Contains(name, "/blobs/") || strings.Contains(name, "/snapshots/"):
			return os.Link(path, target) // for a symbolic link, a link to the link itself
		}
		return copyFile(path, target)
	})
	for _, name := range slices.Backward(dirs) {
		err = errors.Join(err, copyAttributes(filepath.Join(from, name), filepath.Join(to, name)))
	}
	return err
}

func skip(entry fs.DirEntry) error {
	if entry.IsDir() {
		return fs.SkipDir
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// copyAttributes gives a directory of a layer the owner, mode, attributes and times of its original.
func copyAttributes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := errors.Join(os.Lchown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777)); err != nil {
		return err
	}
	if err := copyExtended(from, to); err != nil {
		return err
	}
	return os.Chtimes(to, time.Unix(st.Atim.Unix()), time.Unix(st.Mtim.Unix()))
}

// copyExtended copies extended attributes. overlayfs uses them to mark directories that hide the directories of lower
// layers.
func copyExtended(from, to string) error {
	names := make([]byte, 4096)
	size, err := unix.Llistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: from, Err: err}
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:size]), "\x00"), "\x00") {
		value := make([]byte, 65536)
		n, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return &os.PathError{Op: "copy attribute " + name, Path: from, Err: err}
		}
	}
	return nil
}
