// Package image writes container images from files of this machine, without Docker, a registry or a base image.
//
// It hides how a dynamic program finds its libraries, how links of the host look inside an image, and the two
// archive formats (OCI layout, docker-archive) that loaders expect. It promises:
//
//   - what runs here runs in the image: a program brings its interpreter and every library its own dynamic linker
//     would load, at the very paths where it would look for them, links included;
//   - the same files give the same bytes: entries are sorted, times are zero, owners are root;
//   - one archive that `ctr images import`, `docker load`, `podman load`, `skopeo copy oci-archive:` and any OCI
//     layout reader accept, with the images under their full names.
//
// The drawing:
//
//	Tree ──Layer()──► layer.tar ─┐
//	 ▲                           ├─► Image{Names, Layers, Config} ──Write()──► image.tar
//	files, links, programs       │                                             ├ oci-layout, index.json
//	of this machine       (shared by many images)                              ├ manifest.json (docker load)
//	                                                                           └ blobs/sha256/… each once
package image
