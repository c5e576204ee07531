package cluster

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
)

// pauseArchive is the archive of the sandbox image in ImagesDir.
const pauseArchive = "pause.tar"

// Load brings images into every node, and returns how many these are. What is an archive, as docker save or an OCI
// layout in a tar, a directory with an OCI layout, or the name of an image on this machine.
func (l Lab) Load(ctx context.Context, what string) (nodes int, err error) {
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
				if err := node.ImportImages(ctx, init.PID, archive); err != nil {
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
	init := b.process(fabric.NodeName(n))
	err := apiclient.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error { return node.Listens(ctx, node.Socket(init.PID)) })
	if err != nil {
		return fmt.Errorf("wait for containerd of %s: %w", fabric.NodeName(n), err)
	}
	return nil
}

// imageStore is the containerd that unpacks the images once for all nodes, by its name among the lab's processes.
const imageStore = "image-store"

// store is where the images of a lab lie unpacked.
func (l Lab) store() node.Store { return node.Store{Dir: l.path("store")} }

// unpackImages fills the store, from which nodes take their images over when they start.
func (b *builder) unpackImages(ctx context.Context) error {
	if archive := b.kubeProxyArchive(); archive != "" {
		if err := b.writeKubeProxyImage(archive); err != nil {
			return err
		}
	}
	archives, err := b.archives()
	if err != nil || len(archives) == 0 {
		return err
	}
	cmd, err := b.store().Command()
	if err != nil {
		return err
	}
	// In a namespace of the lab, so that whatever becomes of this process, "down" finds it.
	if err := b.start(imageStore, fabric.NodeName(1), cmd); err != nil {
		return err
	}
	err = b.guardOne(ctx, imageStore, func(ctx context.Context) error {
		err := apiclient.Poll(ctx, 10*time.Millisecond, b.store().Serves)
		if err != nil {
			return fmt.Errorf("wait for the containerd that unpacks images: %w", err)
		}
		return b.store().Import(ctx, archives)
	})
	if err != nil {
		return err
	}
	if err := b.end(imageStore); err != nil {
		return err
	}
	b.Done("images unpacked (%s)", count(len(archives), "archive"))
	return nil
}

// startNodes starts every node, with the images that are in the store, and waits until their containerds serve.
func (b *builder) startNodes(ctx context.Context) error {
	for n := 1; n <= b.Nodes; n++ {
		if err := b.startNode(n); err != nil {
			return err
		}
	}
	for n := 1; n <= b.Nodes; n++ {
		if err := b.guardOne(ctx, fabric.NodeName(n), func(ctx context.Context) error { return b.waitContainerd(ctx, n) }); err != nil {
			return err
		}
	}
	b.Done("containerd runs on %s", count(b.Nodes, "node"))
	return nil
}
