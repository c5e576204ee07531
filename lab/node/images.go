package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An imageService stands between the kubelet and containerd's images. The default pull policy of an image without a tag
// is Always, so the kubelet asks for a pull although the node has the image. A lab reaches no registry, so the node's
// image is always the newest. The exception is a registry at the node's own loopback address: a NodePort on localhost
// with a registry in the cluster behind it.
type imageService struct {
	cri.UnimplementedImageServiceServer
	containerd cri.ImageServiceClient
}

// serveImages serves the CRI image service on imageSocket until ctx is done. It returns as soon as the socket exists.
func serveImages(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+containerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(imageSocket), 0o755); err != nil {
		return fmt.Errorf("create socket directory: %w", err)
	}
	// The socket of a killed kubelet would keep the address in use.
	if err := os.Remove(imageSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", imageSocket)
	if err != nil {
		return fmt.Errorf("listen for images: %w", err)
	}
	server := grpc.NewServer()
	cri.RegisterImageServiceServer(server, &imageService{containerd: cri.NewImageServiceClient(conn)})
	context.AfterFunc(ctx, server.Stop)
	go func() { _ = server.Serve(listener) }()
	return nil
}

func (s *imageService) ListImages(ctx context.Context, r *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	return s.containerd.ListImages(ctx, r)
}

func (s *imageService) ImageStatus(ctx context.Context, r *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return s.containerd.ImageStatus(ctx, r)
}

func (s *imageService) RemoveImage(ctx context.Context, r *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return s.containerd.RemoveImage(ctx, r)
}

func (s *imageService) ImageFsInfo(ctx context.Context, r *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return s.containerd.ImageFsInfo(ctx, r)
}

// onLoopback reports whether containerd would pull the image from the node itself.
func onLoopback(image string) bool {
	registry, _, _ := strings.Cut(image, "/")
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		return false // builders use "localhost/web" as a name for an image that is in no registry
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// PullImage answers from the node's own store, or pulls from the node's own registry.
func (s *imageService) PullImage(ctx context.Context, r *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	if onLoopback(r.GetImage().GetImage()) {
		return s.containerd.PullImage(ctx, r)
	}
	found, err := s.containerd.ImageStatus(ctx, &cri.ImageStatusRequest{Image: r.GetImage()})
	if err != nil {
		return nil, err
	}
	if found.GetImage() == nil {
		return nil, status.Errorf(codes.NotFound,
			"the lab has no image %s and reaches no registry [fairway-lab load IMAGE.tar brings one in]", r.GetImage().GetImage())
	}
	return &cri.PullImageResponse{ImageRef: found.GetImage().GetId()}, nil
}
