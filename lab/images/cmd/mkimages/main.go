// Mkimages makes the container images of the lab and the examples. It uses the lab's own programs and the tools of this
// machine, without a registry or Docker: `go run ./images/cmd/mkimages -o ../bin/images`
//
//	pause (Go) ──────────────────────────► pause.tar    registry.k8s.io/pause
//	web (Go) ────────────────────────────► web.tar      ghcr.io/learnk8s/jobs-api, httpd, nginx
//	sh curl dig nc … + their libraries ──► toolbox.tar  busybox, curlimages/curl, dnsutils, ubuntu
//
// It promises images with the usual public names, so that manifests apply unchanged. The layers are small and shared,
// because every node loads them while the user waits for the lab. The images are not the originals: they contain only
// the programs that the examples and a curious user need.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// module is the import path of the programs to build. This program must run in the lab's module.
const module = "github.com/fairway-net/fairway/lab/images/"

// paths is the PATH of every image.
const paths = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func main() {
	out := flag.String("o", "../bin/images", "directory for the archives")
	e2e := flag.String("e2e", "", "directory of the programs of Kubernetes' own specs: write only e2e.tar, their images")
	policy := flag.String("policy", "", "directory of the programs of network-policy-api's conformance tests: write only policy.tar, their image")
	gateway := flag.String("gateway", "", "directory of the programs of Gateway API's conformance tests: write only gateway.tar, their images")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	switch {
	case *policy != "":
		err = policyImages(*policy, filepath.Join(*out, "policy.tar"))
	case *gateway != "":
		err = gatewayImages(*gateway, filepath.Join(*out, "gateway.tar"))
	default:
		err = run(ctx, *out, *e2e)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimages:", err)
		os.Exit(1)
	}
}

// run writes the three archives. If e2e names a directory of programs, it writes only e2e.tar.
func run(ctx context.Context, out, e2e string) error {
	tmp, err := os.MkdirTemp("", "fairway-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, program := range []string{"pause", "web"} {
		if err := build(ctx, program, filepath.Join(tmp, program)); err != nil {
			return err
		}
	}
	if e2e != "" {
		specs, err := e2eImages(e2e, tmp)
		if err != nil {
			return err
		}
		return write(filepath.Join(out, "e2e.tar"), specs)
	}
	pause, err := pauseImages(filepath.Join(tmp, "pause"))
	if err != nil {
		return err
	}
	web, err := webImages(filepath.Join(tmp, "web"))
	if err != nil {
		return err
	}
	tools, err := toolboxImages()
	if err != nil {
		return err
	}
	for _, a := range []struct {
		file   string
		images []image.Image
	}{{"pause.tar", pause}, {"web.tar", web}, {"toolbox.tar", tools}} {
		if err := write(filepath.Join(out, a.file), a.images); err != nil {
			return err
		}
	}
	return nil
}

// build builds one static program.
func build(ctx context.Context, program, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, module+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	return nil
}

func write(file string, images []image.Image) error {
	if err := image.WriteFile(file, images...); err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	fmt.Printf("%s (%.1f MB)\n", file, float64(info.Size())/1e6)
	for _, img := range images {
		for _, n := range img.Names {
			fmt.Println("   ", n)
		}
	}
	return nil
}

func pauseImages(program string) ([]image.Image, error) {
	var t image.Tree
	t.Copy("/pause", program)
	layer, err := t.Layer()
	if err != nil {
		return nil, err
	}
	return []image.Image{{
		Names:  []string{"registry.k8s.io/pause:3.10"},
		Layers: []*image.Layer{layer},
		Config: v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"},
	}}, nil
}

func webImages(program string) ([]image.Image, error) {
	var t image.Tree
	t.Copy("/usr/bin/web", program)
	t.File("/etc/nsswitch.conf", 0o644, "hosts: files dns\n")
	t.Dir("/tmp", 0o777|os.ModeSticky)
	layer, err := t.Layer()
	if err != nil {
		return nil, err
	}
	of := func(role string, ports []string, names ...string) image.Image {
		open := make(map[string]struct{})
		for _, p := range ports {
			open[p] = struct{}{}
		}
		return image.Image{Names: names, Layers: []*image.Layer{layer}, Config: v1.Config{
			Entrypoint: []string{"/usr/bin/web", role}, Env: []string{paths}, ExposedPorts: open,
		}}
	}
	return []image.Image{
		of("jobs", []string{"3000/tcp", "8080/tcp"}, "ghcr.io/learnk8s/jobs-api:latest"),
		of("httpd", []string{"80/tcp"}, "docker.io/library/httpd:latest", "docker.io/library/nginx:latest"),
	}, nil
}
