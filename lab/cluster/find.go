package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// archiveOf finds the image archive for Load. The argument names an archive, a directory with an OCI layout, or an
// image that a container runtime of this machine holds. tmp is a directory for the archives that archiveOf creates.
func archiveOf(ctx context.Context, what, tmp string) (string, error) {
	info, err := os.Stat(what)
	switch {
	case err == nil && !info.IsDir():
		return what, nil
	case err == nil:
		return archiveOfLayout(ctx, what, tmp)
	case !errors.Is(err, os.ErrNotExist) || strings.HasSuffix(what, ".tar"):
		return "", fmt.Errorf("image archive: %w", err)
	}
	return export(ctx, what, filepath.Join(tmp, "image.tar"))
}

func archiveOfLayout(ctx context.Context, dir, tmp string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
		return "", fmt.Errorf("%s is no OCI layout: %w [name a directory with a file oci-layout, an archive, or an image]", dir, err)
	}
	archive := filepath.Join(tmp, "layout.tar")
	if out, err := exec.CommandContext(ctx, "tar", "-cf", archive, "-C", dir, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("pack %s: %w: %s", dir, err, out)
	}
	return archive, nil
}

// export writes the image called name into archive, from the first runtime that has the image.
func export(ctx context.Context, name, archive string) (string, error) {
	var asked []string
	for _, argv := range [][]string{
		{"docker", "save", "-o", archive, name},
		{"podman", "save", "-o", archive, name},
		{"ctr", "--namespace", "default", "images", "export", archive, fullName(name)},
		{"ctr", "--namespace", "k8s.io", "images", "export", archive, fullName(name)},
		{"ctr", "--namespace", "moby", "images", "export", archive, fullName(name)},
	} {
		if _, err := exec.LookPath(argv[0]); err != nil {
			continue
		}
		if exec.CommandContext(ctx, argv[0], argv[1:]...).Run() == nil {
			return archive, nil
		}
		_ = os.Remove(archive) // a failed export leaves a partial file
		asked = append(asked, strings.Join(argv[:min(3, len(argv)-3)], " "))
	}
	if len(asked) == 0 {
		return "", fmt.Errorf("there is no file %s, and no docker, podman or ctr on this machine that could have such an image", name)
	}
	return "", fmt.Errorf("there is no file %s, and none of these has such an image: %s", name, strings.Join(asked, ", "))
}

// fullName returns an image's name as containerd stores it: nginx is docker.io/library/nginx:latest.
func fullName(name string) string {
	first, rest, slash := strings.Cut(name, "/")
	switch {
	case !slash:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		name = "docker.io/" + first + "/" + rest
	}
	if tail := name[strings.LastIndexByte(name, '/'):]; !strings.ContainsAny(tail, ":@") {
		name += ":latest"
	}
	return name
}
