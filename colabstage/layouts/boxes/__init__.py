"""Images with boxes: KITTI, YOLO, COCO and Pascal VOC."""
