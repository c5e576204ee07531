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

// A Store has images unpacked once for all nodes, as containerd keeps them. It is made by a containerd of its own,
// which has ended when a node takes the store over:
//
//	archives ── import ──> Dir/root ── links ──> the root of each node's containerd
//
// What containerd never changes in place, the blobs and the files of layers, nodes have by hard links; its databases
// are copied. So a node changes and removes its own images, and nobody else's. Zero value: no store.
type Store struct {
	Dir string // in the file system of the nodes' files; short, for the path of a socket has 107 bytes
}

// storeConfig leaves out what runs containers.
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

// Command is the containerd that the store is filled by.
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
	// So that the machine sees nothing of the mounts with which it unpacks.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd, nil
}

// Serves returns an error unless the store's containerd takes connections.
func (s Store) Serves(ctx context.Context) error { return Listens(ctx, s.path("s")) }

// Import brings the archives into the store, and remembers which they are.
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

// importByContainerd takes any archive that containerd understands.
func (s Store) importByContainerd(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, "ctr", "--address", s.path("s"), "--namespace", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text.LastLine(string(out)))
	}
	return nil
}

// Missing are those of the archives that are not in the store as they are now.
func (s Store) Missing(archives []string) []string {
	have := map[string]string{}
	if data, err := os.ReadFile(s.path("archives.json")); err == nil {
		_ = json.Unmarshal(data, &have) // what cannot be read has nothing
	}
	now := fingerprints(archives)
	return slices.DeleteFunc(slices.Clone(archives), func(a string) bool { return have[a] != "" && have[a] == now[a] })
}

// fingerprints tell an archive from a former one of the same name.
func fingerprints(archives []string) map[string]string {
	prints := map[string]string{}
	for _, a := range archives {
		if info, err := os.Stat(a); err == nil {
			prints[a] = fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
		}
	}
	return prints
}

// own are the parts of containerd's root that are the store's own: who it is, and what was not finished.
var own = []string{"io.containerd.grpc.v1.introspection", "io.containerd.content.v1.content/ingest", "tmpmounts"}

// Fill gives the node what is in the store, unless it has a root of its own already. The store's containerd must have ended.
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

// cloneTree makes the directory to like from, with links to the same files where these never change.
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
			return os.Link(path, target) // of a symbolic link, the link itself
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

// copyAttributes gives a directory of a layer the owner, the mode, the attributes and the time of its original.
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

// copyExtended copies extended attributes, by which overlayfs marks directories that hide those below.
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
