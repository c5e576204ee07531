package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// checkImages finds out whether the manifests' pods can start, before the lab makes anything. Otherwise the kubelets
// would try for minutes to pull images from registries that they cannot reach.
func (o Options) checkImages() error {
	if !o.runsPods() {
		return nil
	}
	if o.Image == "" {
		return errors.New("--image is empty: no pod of the manifests has an image [--deploy '' leaves them out as well]")
	}
	if _, err := os.Stat(filepath.Join(o.ImagesDir, pauseArchive)); o.ImagesDir == "" || err != nil {
		return fmt.Errorf("--images-dir %q has no %s: no pod starts without the image of its sandbox [make images builds it; --deploy '' leaves the manifests out]", o.ImagesDir, pauseArchive)
	}
	if o.Deploy == "" {
		return nil
	}
	wanted, file, err := o.wantedImage()
	if err != nil {
		return err
	}
	have, err := imageNames(o.Image)
	if err != nil {
		return fmt.Errorf("--image %s: %w [make image builds one]", o.Image, err)
	}
	if !slices.Contains(have, wanted) {
		return fmt.Errorf("--image %s has %s, but %s names %s, which make image wrote beside it: both are to be of one make image [make image]",
			o.Image, strings.Join(have, ", "), file, wanted)
	}
	return nil
}

// wantedImage returns the image name that the manifests will use, and the file that sets it.
func (o Options) wantedImage() (name, file string, err error) {
	file = imageComponentFile(o.Image)
	text, err := os.ReadFile(file)
	if err != nil {
		return "", file, fmt.Errorf("find the name of the image: %w [make image writes it]", err)
	}
	var component struct {
		Images []struct{ Name, NewName, NewTag, Digest string }
	}
	if err := yaml.Unmarshal(text, &component); err != nil {
		return "", file, fmt.Errorf("read %s: %w [make image writes it]", file, err)
	}
	if len(component.Images) != 1 || component.Images[0].NewTag == "" {
		return "", file, fmt.Errorf("%s does not name one image with its tag [make image writes it]", file)
	}
	i := component.Images[0]
	if i.NewName != "" {
		i.Name = i.NewName
	}
	return i.Name + ":" + i.NewTag, file, nil
}

// imageComponentFile returns the path of the component that names the image. "make image" writes it.
func imageComponentFile(archive string) string { return strings.TrimSuffix(archive, ".tar") + ".yaml" }

// imageNames lists the image names, with tags, in an image archive.
func imageNames(archive string) ([]string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer file.Close()
	images, err := manifestOf(file)
	switch {
	case errors.Is(err, errNoFile):
		return nil, errors.New("it is no archive of an image: it has no manifest.json")
	case err != nil:
		return nil, fmt.Errorf("it is no archive of an image: %w", err)
	}
	var names []string
	for _, i := range images {
		names = append(names, i.RepoTags...)
	}
	return names, nil
}
