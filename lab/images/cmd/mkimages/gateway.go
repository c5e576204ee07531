package main

import (
	"path/filepath"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// gatewayDNS stands for CoreDNS of the suite's UDP backend. fairway dns has no plugin whoami, so its zone answers NXDOMAIN.
const gatewayDNS = `#!/bin/sh
sed 's/^ *whoami *$/template ANY ANY {\nrcode NXDOMAIN\n}/' "$2" >/tmp/Corefile
exec /fairway dns --conf /tmp/Corefile
`

// gatewayImages writes the images of Gateway API's conformance tests v1.6.3: the suite's own program echo-basic, and a
// stand-in for CoreDNS.
func gatewayImages(programs, file string) error {
	tools, err := toolboxImages()
	if err != nil {
		return err
	}
	var echo, dns image.Tree
	echo.Copy("/echo-basic", filepath.Join(programs, "echo-basic"))
	dns.Copy("/fairway", filepath.Join(programs, "fairway"))
	dns.File("/coredns", 0o755, gatewayDNS)
	one, err := echo.Layer()
	if err != nil {
		return err
	}
	two, err := dns.Layer()
	if err != nil {
		return err
	}
	server := tools[len(tools)-1]
	server.Names = []string{"registry.k8s.io/coredns/coredns:v1.12.2"}
	server.Layers = append(append([]*image.Layer(nil), server.Layers...), two)
	server.Config = v1.Config{Entrypoint: []string{"/coredns"}, Env: []string{paths}, WorkingDir: "/"}
	name := "registry.k8s.io/gateway-api/echo-basic:"
	return write(file, []image.Image{server, {
		Names:  []string{name + "v1.5.1", name + "v1.6.0-dev.2", name + "v1.6.0-dev.3"},
		Layers: []*image.Layer{one}, Config: v1.Config{Entrypoint: []string{"/echo-basic"}},
	}})
}
