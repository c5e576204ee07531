package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
)

// pauseArchive is the archive of the sandbox image in ImagesDir.
const pauseArchive = "pause.tar"

// Load brings images into every node, and returns how many these are. What is an archive, as docker save or an OCI
// layout in a tar, a directory with an OCI layout, or the name of an image on this machine.
func (l Lab) Load(ctx context.Context, what string) (nodes int, err error) {
	if err := CheckRoot(); err != nil {
		return 0, err
	}
	state, err := l.load()
	if err != nil {
		return 0, err
	}
	tmp, err := os.MkdirTemp("", "fairway-lab-load-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the image: %w", err)
	}
	defer os.RemoveAll(tmp)
	archive, err := archiveOf(ctx, what, tmp)
	if err != nil {
		return 0, err
	}
	return len(state.nodes()), l.importAll(ctx, state, []string{archive})
}

// importAll brings the archives into all nodes, at once on each.
func (l Lab) importAll(ctx context.Context, s *State, archives []string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range s.nodes() {
		init := s.process(fabric.NodeName(n))
		if !init.Alive() {
			return l.broken(fabric.NodeName(n))
		}
		group.Go(func() error {
			for _, archive := range archives {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err := node.ImportImages(init.PID, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// kubeProxyArchive is where the archive of kube-proxy's image is; "": the lab has none.
func (b *builder) kubeProxyArchive() string {
	if b.KubeProxy == "" {
		return ""
	}
	return b.path("kube-proxy.tar")
}

// waitContainerd waits until a node's containerd serves.
func (b *builder) waitContainerd(ctx context.Context, n int) error {
	init := b.state.process(fabric.NodeName(n))
	err := poll(ctx, 20*time.Millisecond, func(context.Context) error {
		_, err := os.Stat(node.Socket(init.PID))
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for containerd of %s: %w", fabric.NodeName(n), err)
	}
	return nil
}

// importFirst imports what the first pods need, as soon as the containerds
// serve.
func (b *builder) importFirst(ctx context.Context) error {
	for n := 1; n <= b.Nodes; n++ {
		if err := b.waitContainerd(ctx, n); err != nil {
			return err
		}
	}
	b.Done("containerd runs on %s", count(b.Nodes, "node"))
	var archives []string
	if b.ImagesDir != "" {
		archives = append(archives, filepath.Join(b.ImagesDir, pauseArchive))
	}
	if b.Image != "" {
		archives = append(archives, b.Image)
	}
	if archive := b.kubeProxyArchive(); archive != "" {
		if err := b.writeKubeProxyImage(archive); err != nil {
			return err
		}
		archives = append(archives, archive)
	}
	if err := b.importAll(ctx, b.state, archives); err != nil {
		return err
	}
	b.Done("images of the cluster loaded")
	return nil
}

// importRest imports the images of the examples, when the cluster is ready.
func (b *builder) importRest(ctx context.Context) error {
	if b.ImagesDir == "" {
		return nil
	}
	archives, err := filepath.Glob(filepath.Join(b.ImagesDir, "*.tar"))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	archives = slices.DeleteFunc(archives, func(a string) bool { return filepath.Base(a) == pauseArchive })
	if err := b.importAll(ctx, b.state, archives); err != nil {
		return err
	}
	b.Done("example images loaded (%s)", count(len(archives), "archive"))
	return nil
}
