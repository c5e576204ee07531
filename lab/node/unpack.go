package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// An unpacker imports layouts into the store's containerd. It writes blobs into containerd's directory as files, and
// then registers them. "ctr images import" instead hashes and copies each blob three times, which took 2 s of a core.
type unpacker struct {
	dir  string // directory of blobs
	conn *grpc.ClientConn
}

const (
	snapshotter = "overlayfs"
	unpackLease = "fairway-lab-unpack"
)

// unpacker connects to the store's containerd. closer ends the lease, so containerd removes unpacked data that belongs
// to no image.
func (s Store) unpacker(ctx context.Context) (u *unpacker, inner context.Context, closer func(), err error) {
	conn, err := grpc.NewClient("unix://"+s.path("s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("connect to containerd: %w", err)
	}
	u = &unpacker{dir: s.path("root/io.containerd.content.v1.content/blobs/sha256"), conn: conn}
	inner = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	leases := leasesapi.NewLeasesClient(conn)
	_, err = leases.Create(inner, &leasesapi.CreateRequest{ID: unpackLease, Labels: map[string]string{
		"containerd.io/gc.expire": time.Now().Add(time.Hour).Format(time.RFC3339)}})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		conn.Close()
		return nil, nil, nil, fmt.Errorf("lease the images: %w", err)
	}
	if err := os.MkdirAll(u.dir, 0o755); err != nil {
		conn.Close()
		return nil, nil, nil, fmt.Errorf("create the directory of blobs: %w", err)
	}
	return u, metadata.AppendToOutgoingContext(inner, "containerd-lease", unpackLease), func() {
		_, _ = leases.Delete(inner, &leasesapi.DeleteRequest{ID: unpackLease, Sync: true}) // after an error, the lease expires
		conn.Close()
	}, nil
}

// unpack imports the images of an archive. The error is errNoLayout if the archive has another format.
func (u *unpacker) unpack(ctx context.Context, archive string) error {
	l, err := openLayout(archive)
	if err != nil {
		return err
	}
	defer l.file.Close()
	for _, i := range l.images {
		if err := u.image(ctx, l, i); err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
	}
	return nil
}

// image creates an image with its layers as snapshots. Its labels are the references by which containerd's garbage
// collection keeps or removes the parts together.
func (u *unpacker) image(ctx context.Context, l *layout, i layoutImage) error {
	chain := identity.ChainID(i.config.RootFS.DiffIDs).String()
	refs := map[string]string{"containerd.io/gc.ref.content.config": i.manifest.Config.Digest.String()}
	for n, layer := range i.manifest.Layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", n)] = layer.Digest.String()
		if err := u.blob(ctx, l, layer, map[string]string{"containerd.io/uncompressed": layer.Digest.String()}); err != nil {
			return err
		}
	}
	if err := u.blob(ctx, l, i.manifest.Config, map[string]string{"containerd.io/gc.ref.snapshot." + snapshotter: chain}); err != nil {
		return err
	}
	if err := u.blob(ctx, l, i.target, refs); err != nil {
		return err
	}
	parent := ""
	for n, layer := range i.manifest.Layers {
		name := identity.ChainID(i.config.RootFS.DiffIDs[:n+1]).String()
		if err := u.layer(ctx, layer, name, parent); err != nil {
			return err
		}
		parent = name
	}
	image := &imagesapi.Image{Name: i.name, Target: descriptor(i.target)}
	client := imagesapi.NewImagesClient(u.conn)
	_, err := client.Create(ctx, &imagesapi.CreateImageRequest{Image: image})
	if status.Code(err) == codes.AlreadyExists {
		_, err = client.Update(ctx, &imagesapi.UpdateImageRequest{Image: image})
	}
	return err
}

func descriptor(d v1.Descriptor) *types.Descriptor {
	return &types.Descriptor{MediaType: d.MediaType, Digest: d.Digest.String(), Size: d.Size}
}

// blob registers a blob with containerd.
func (u *unpacker) blob(ctx context.Context, l *layout, d v1.Descriptor, labels map[string]string) error {
	if err := l.extract(u.dir, d); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := contentapi.NewContentClient(u.conn).Write(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_COMMIT, Ref: filepath.Base(l.file.Name()) + d.Digest.String(),
		Total: d.Size, Offset: d.Size, Expected: d.Digest.String(), Labels: labels})
	if err != nil {
		return err
	}
	if _, err = stream.Recv(); status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// layer makes the snapshot of a layer on top of the parent's snapshot.
func (u *unpacker) layer(ctx context.Context, d v1.Descriptor, name, parent string) error {
	snapshots := snapshotsapi.NewSnapshotsClient(u.conn)
	if _, err := snapshots.Stat(ctx, &snapshotsapi.StatSnapshotRequest{Snapshotter: snapshotter, Key: name}); status.Code(err) != codes.NotFound {
		return err
	}
	key := fmt.Sprintf("extract-%d %s", time.Now().UnixNano(), name)
	made, err := snapshots.Prepare(ctx, &snapshotsapi.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: key, Parent: parent})
	if err != nil {
		return err
	}
	_, err = diffapi.NewDiffClient(u.conn).Apply(ctx, &diffapi.ApplyRequest{Diff: descriptor(d), Mounts: made.GetMounts()})
	if err == nil {
		_, err = snapshots.Commit(ctx, &snapshotsapi.CommitSnapshotRequest{Snapshotter: snapshotter, Name: name, Key: key,
			Labels: map[string]string{"containerd.io/snapshot.ref": name}})
	}
	if err == nil {
		return nil
	}
	_, gone := snapshots.Remove(ctx, &snapshotsapi.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: key})
	if status.Code(err) == codes.AlreadyExists { // another archive has the same layer
		err = nil
	}
	return errors.Join(err, gone)
}
