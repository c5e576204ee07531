package main

import (
	"path/filepath"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// upstream are the images with programs built from Kubernetes' own sources.
var upstream = []struct {
	program, name string
	cmd           []string
	files         []string // next to the program
}{
	{"agnhost", "e2e-test-images/agnhost:2.66.1", []string{"pause"}, []string{"localhost.crt", "localhost.key", "fairway"}},
	{"regression-issue-74839", "e2e-test-images/regression-issue-74839:1.5", nil, nil},
}

// coredns is the script that specs start in agnhost as a name server. Upstream's image contains CoreDNS 1.6. The script
// runs fairway dns instead.
const coredns = "#!/bin/sh\nexec /fairway dns \"-$1\" \"$2\"\n"

// standIns are images from which the specs need only tools: a shell, dig, conntrack.
var standIns = []string{
	"e2e-test-images/glibc-dns-testing:2.1.1", "e2e-test-images/busybox:1.37.0-2", "build-image/distroless-iptables:v0.9.7",
}

// e2eImages returns the images of Kubernetes' end-to-end network specs, with the names in
// k8s.io/kubernetes/test/utils/image of v1.37.1. They contain the programs in the directory, the toolbox's tools, and
// the lab's pause and web servers. The tools come from Debian, while agnhost's come from Alpine. The web server also
// stands for nginx.
func e2eImages(programs, own string) ([]image.Image, error) {
	tools, err := toolboxImages()
	if err != nil {
		return nil, err
	}
	base := tools[len(tools)-1]
	named := func(img image.Image, name string) image.Image {
		img.Names = []string{"registry.k8s.io/" + name}
		return img
	}
	served, err := webImages(filepath.Join(own, "web"))
	if err != nil {
		return nil, err
	}
	pause, err := pauseImages(filepath.Join(own, "pause"))
	if err != nil {
		return nil, err
	}
	images := []image.Image{named(pause[0], "pause:3.10.2"), named(served[len(served)-1], "e2e-test-images/nginx:1.27.0-2")}
	for _, name := range standIns {
		images = append(images, named(base, name))
	}
	for _, u := range upstream {
		var t image.Tree
		for _, file := range append([]string{u.program}, u.files...) {
			t.Copy("/"+file, filepath.Join(programs, file))
		}
		if u.program == "agnhost" {
			t.File("/coredns", 0o755, coredns)
			if err := serveImage(&t, "pause", "testing", images[0]); err != nil {
				return nil, err
			}
		}
		layer, err := t.Layer()
		if err != nil {
			return nil, err
		}
		img := named(base, u.name)
		img.Layers = append(append([]*image.Layer(nil), base.Layers...), layer)
		img.Config = v1.Config{Entrypoint: []string{"/" + u.program}, Cmd: u.cmd, Env: []string{paths}, WorkingDir: "/"}
		images = append(images, img)
	}
	return images, nil
}

// policyImages writes the image of network-policy-api's conformance tests. It contains agnhost behind the program sctp,
// which passes everything except SCTP to agnhost (test/policy).
func policyImages(programs, file string) error {
	tools, err := toolboxImages()
	if err != nil {
		return err
	}
	var t image.Tree
	t.Copy("/agnhost", filepath.Join(programs, "sctp"))
	t.Copy("/agnhost.real", filepath.Join(programs, "agnhost"))
	layer, err := t.Layer()
	if err != nil {
		return err
	}
	img := tools[len(tools)-1]
	img.Names = []string{"registry.k8s.io/e2e-test-images/agnhost:2.45"}
	img.Layers = append(append([]*image.Layer(nil), img.Layers...), layer)
	img.Config = v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{paths}, WorkingDir: "/"}
	return write(file, []image.Image{img})
}
