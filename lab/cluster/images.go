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

// Load imports images into every node, and returns the number of nodes. The argument names an archive, a directory with
// an OCI layout, or an image on this machine. An archive comes from docker save, or is an OCI layout in a tar.
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

// importAll imports the archives into all nodes in parallel.
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

// kubeProxyArchive returns the path of the kube-proxy image's archive, or "" if the lab does not run kube-proxy.
func (b *builder) kubeProxyArchive() string {
	if b.KubeProxy == "" {
		return ""
	}
	return b.path("kube-proxy.tar")
}

// waitContainerd waits until a node's containerd accepts connections.
func (b *builder) waitContainerd(ctx context.Context, n int) error {
	init := b.process(fabric.NodeName(n))
	err := apiclient.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error { return node.Listens(ctx, node.Socket(init.PID)) })
	if err != nil {
		return fmt.Errorf("wait for containerd of %s: %w", fabric.NodeName(n), err)
	}
	return nil
}

// imageStore is the process name of the containerd that unpacks the images once for all nodes.
const imageStore = "image-store"

// store returns the store of the lab's unpacked images.
func (l Lab) store() node.Store { return node.Store{Dir: l.path("store")} }

// unpackImages fills the store. A node takes its images from the store when it starts.
func (b *builder) unpackImages(ctx context.Context) error {
	if archive := b.kubeProxyArchive(); archive != "" {
		if err := b.writeKubeProxyImage(archive); err != nil {
			return err
		}
	}
	if archive := b.coreDNSArchive(); archive != "" {
		if err := b.writeCoreDNSImage(archive); err != nil {
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
	// The process runs in a namespace of the lab, so that "down" finds it even if this program dies.
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

// startNodes starts every node with the store's images, and waits until every containerd accepts connections.
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
