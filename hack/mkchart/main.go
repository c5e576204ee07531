// Command mkchart writes the Helm chart bin/fairway-VERSION.tgz, and with -dir its files.
//
//	deploy/ ─ hack/chart ─▶ files ─▶ fairway-VERSION.tgz
//
// It runs in the root of the repository. The same sources give the same bytes.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/hack/chart"
)

func main() {
	dir := flag.String("dir", "", "directory for the files of the chart (default: none is written)")
	version := flag.String("version", "v0.0.0-dev", "version of the programs")
	flag.Parse()
	log.SetFlags(0)
	if err := run(*dir, *version); err != nil {
		log.Fatalln("mkchart:", err)
	}
}

func run(dir, version string) error {
	image, err := defaultImage(version)
	if err != nil {
		return err
	}
	readme, err := os.ReadFile("docs/helm.md")
	if err != nil {
		return err
	}
	files, err := chart.Chart{Manifests: deploy.Files, Version: version, Image: image, Readme: string(readme)}.Files()
	if err != nil {
		return err
	}
	for name, text := range files {
		if dir == "" {
			break
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	archive, err := chart.Archive(files)
	if err != nil {
		return err
	}
	path := filepath.Join("bin", "fairway-"+strings.TrimPrefix(version, "v")+".tgz")
	if err := os.WriteFile(path, archive, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d files, %d bytes\n", path, len(files), len(archive))
	return nil
}

// defaultImage returns the image of a release, or the one that `make image` made, or "".
func defaultImage(version string) (string, error) {
	const product, file = "ghcr.io/fairway-net/fairway", "bin/fairway-image.yaml"
	if !strings.Contains(version, "-") {
		return product + ":" + version, nil
	}
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var component struct {
		Images []struct{ Name, NewTag string } `json:"images"`
	}
	err = yaml.Unmarshal(text, &component)
	if err == nil && len(component.Images) != 1 {
		err = fmt.Errorf("it names %d images", len(component.Images))
	}
	if err != nil {
		return "", fmt.Errorf("%s is not what `make image` writes: %w", file, err)
	}
	return component.Images[0].Name + ":" + component.Images[0].NewTag, nil
}
